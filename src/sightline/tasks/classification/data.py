"""The splits that the section `data` of a classification run, or a path on the command line, names."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from sightline.data.embedded import embedded
from sightline.data.readers.folder import FolderReader
from sightline.data.readers.tar import ShardReader, TarReader
from sightline.data.splits import HF, Reader, Split
from sightline.tasks.classification.config import Data
from sightline.util.documents import read_text
from sightline.util.errors import FileError, InputError
from sightline.util.files import reason

SPLITS = {"train": ("train", "training"), "val": ("val", "validation", "test", "eval")}
Classes = tuple[str, ...] | None


def open_split(data: Data, which: str, classes: Classes = None) -> Split:
    """The split `which`, "train" or "val"; labels follow `classes` if given, else the names found.

    Raises:
        FileError: there is no such split, it is empty, or its classes do not fit.
    """
    path, split = data.path, data.train_split if which == "train" else data.val_split
    if path is not None and not path.strip():
        raise InputError("data.path: the path is empty; give a folder, or leave it out for the embedded data")
    if path is None:
        return _open_embedded(split or {"train": "train", "val": "test"}[which], classes).first_of_each(data.limit)
    if which == "train" and Path(path).is_file():
        raise FileError(f"{path}: one file holds no splits; give a folder with train.tar and val.tar")
    names, known = (split,) if split else SPLITS[which], classes or _read_class_map(data.class_map)
    try:
        if data.source == "hfds" or (data.source == "auto" and path.startswith(HF)):
            found = _open_hub(data, path.removeprefix(HF), names, known)
        else:
            found = _open_path(data.source, Path(path), names, known)
    except OSError as error:
        raise FileError(f"{error.filename or path}: cannot be read ({reason(error)}); check its permissions") from error
    _check(found, which)
    return found.first_of_each(data.limit)


def data_section(given: str | None, known: Data | None, split: str | None = None) -> Data:
    """Where the images to evaluate are: as given, "embedded" for ours, else as in the configuration of the run."""
    if given == "embedded" and not Path(given).exists():
        return Data(val_split=split)
    if given is None:
        if known is None:
            raise InputError("data: name the images to evaluate; only a run folder records its own")
        return replace(known, val_split=split or known.val_split)
    if not given.strip():
        raise InputError("data: the path is empty; give a folder, a tar file or hfds/NAME")
    path, columns = Path(given), known or Data()
    data = Data(image_key=columns.image_key, label_key=columns.label_key)
    if split is None and path.is_dir() and _is_split(path):
        return replace(data, path=str(path.resolve().parent), val_split=path.resolve().name)
    return replace(data, path=given, val_split=split)


def _is_split(path: Path) -> bool:
    """Whether a folder holds classes instead of splits."""
    names = [name for which in SPLITS.values() for name in which]
    inside = [item.name for item in path.iterdir()]
    return any((path / name).is_dir() for name in inside) and not any(
        item == name or (item.endswith(".tar") and name in item) for item in inside for name in names
    )


def images(data: str | None, section: Data | None) -> Split:
    """All labeled images of the evaluation split, for studies; "embedded" is the embedded test set."""
    return open_split(replace(data_section(data, section), limit=None), "val")


def _open_embedded(name: str, classes: Classes) -> Split:
    if name not in ("train", "test"):
        raise FileError(f"the embedded data has no split {name!r}; expected train or test")
    return Split(_embedded_reader(embedded() / f"{name}.tar", classes), f"the embedded Fashion-MNIST ({name})")


@cache
def _embedded_reader(path: Path, classes: Classes) -> Reader:
    """Indexed once: it takes most of a second."""
    return TarReader(path, classes)


def _open_path(source: str, root: Path, names: Sequence[str], classes: Classes) -> Split:
    if not root.is_dir() and not (root.is_file() and root.suffix == ".tar"):
        raise FileError(f"{root}: no such folder or tar file; give a folder with train and val")
    if root.is_file():
        return Split(ShardReader([root], classes) if source == "wds" else TarReader(root, classes), str(root))
    for name in names:
        folder, tar = root / name, root / f"{name}.tar"
        shards = sorted({*root.glob(f"*{name}*.tar"), *root.glob(f"{name}/*.tar")})
        if source in ("auto", "folder") and folder.is_dir():
            return Split(_folder_reader(folder, source, classes), str(folder))
        if source in ("auto", "tar") and tar.is_file():
            return Split(TarReader(tar, classes), str(tar))
        if source in ("auto", "wds") and shards:
            return Split(ShardReader(shards, classes), str(shards[0].parent))
    if any(root.rglob("*.parquet")):
        raise FileError(f"{root}: for parquet files, give data.path={HF}{root}")
    found = ", ".join(sorted(item.name for item in root.iterdir() if not item.name.startswith("."))[:6]) or "nothing"
    kind = "" if source == "auto" else f" of data.source={source}"
    raise FileError(
        f"{root}: no split {' or '.join(names)}{kind}; it holds {found}; it needs the folders train and val, each "
        f"with a folder of images per class, or other names as data.train_split and data.val_split"
    )


def _folder_reader(folder: Path, source: str, classes: Classes) -> Reader:
    """A folder of class folders, of one tar file per class, or of shards."""
    if any(item.is_dir() for item in folder.iterdir()) or not (tars := sorted(folder.glob("*.tar"))):
        return FolderReader(str(folder), classes)
    if source == "auto" and ShardReader.recognizes(tars[0]):
        return ShardReader(tars, classes)
    return TarReader(folder, classes)


def _open_hub(data: Data, name: str, names: Sequence[str], classes: Classes) -> Split:
    try:
        from sightline.data.readers.hub import HubReader
    except ImportError as error:
        raise InputError("data.path: Hugging Face datasets need datasets: pip install datasets") from error
    if not name.strip("/ "):
        raise InputError(f"data.path: {HF}{name} names no dataset; give {HF}NAME")
    last: Exception | None = None
    for split in names:
        try:
            return Split(HubReader(name, split, classes, data.image_key, data.label_key), f"{name}:{split}")
        except FileError:
            raise
        except Exception as error:  # of whatever kind the library and what it calls raise
            last = error
    assert last is not None
    raise FileError(f"{name}: no dataset or no split {' or '.join(names)} ({reason(last)})")


def _check(split: Split, which: str) -> None:
    if not len(split):
        raise FileError(f"{split.title}: no images")
    for name in split.classes:
        if not _is_text(name):  # no file of weights could hold it
            raise FileError(f"{split.title}: the name of class {name!a} is not UTF-8; rename it")
    if which == "train" and len(split.classes) < 2:
        raise FileError(f"{split.title}: only one class, {split.classes[0]!r}; classification needs at least two")
    missing = set(range(len(split.classes))) - set(split.targets)
    if which == "train" and missing:
        names = [split.classes[i] for i in sorted(missing)]
        raise FileError(f"{split.title}: no images of class {', '.join(names[:4])}; add some or remove the class")


def absent(split: Split) -> tuple[str, ...]:
    """A note on the classes that a split has no images of."""
    missing = sorted(set(range(len(split.classes))) - set(split.targets))
    if not missing:
        return ()
    names, more = ", ".join(split.classes[i] for i in missing[:4]), len(missing) - 4
    return (f"{split.title}: no images of class {names}{f' and {more} more' * (more > 0)}, which cannot be scored",)


def _is_text(name: str) -> bool:
    """Whether a name can be written; those of files may have bytes that cannot."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _read_class_map(path: str | None) -> Classes:
    if path is None:
        return None
    try:
        names = tuple(line.strip() for line in read_text(path).splitlines() if line.strip())
    except (OSError, ValueError) as error:
        raise FileError(f"data.class_map: {path} cannot be read; give a text file with one class per line") from error
    if len(set(names)) != len(names) or len(names) < 2:
        raise FileError(f"data.class_map: {path} needs two or more different names, one per line")
    return names
