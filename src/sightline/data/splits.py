"""Labeled images: folders, tar files, WebDataset shards and Hugging Face datasets."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from sightline.data.embedded import embedded
from sightline.data.images import ImageError, load_image
from sightline.data.readers import Reader
from sightline.data.readers.folder import FolderReader
from sightline.data.readers.tar import ShardReader, TarReader
from sightline.util.errors import FileError, InputError
from sightline.util.files import reason

SPLITS = {"train": ("train", "training"), "val": ("val", "validation", "test", "eval")}
HF = "hfds/"
Classes = tuple[str, ...] | None


class Split:
    """Labeled images, read one at a time.

    Args:
        reader: has the images.
        title: what to call it in messages.
        indices: the images of the reader to use; by default all.

    Attributes:
        classes: names, in the order of the labels.
        targets: the label of every image.
        notes: what a user should know about it, one line each.
    """

    def __init__(self, reader: Reader, title: str, indices: Sequence[int] | None = None) -> None:
        self.reader, self.title = reader, title
        self.classes, self.notes = reader.classes, reader.notes
        self.indices = range(len(reader.targets)) if indices is None else indices
        self.targets = [reader.targets[i] for i in self.indices]

    def __len__(self) -> int:
        return len(self.indices)

    def name(self, index: int) -> str:
        """The file name of an image, for messages."""
        return f"{self.title}/{self.reader.name(self.indices[index])}"

    def image(self, index: int, channels: int = 3) -> Image.Image:
        """The decoded image; raises `ImageError` with its name."""
        try:
            source = self.reader.source(self.indices[index])
        except OSError as error:
            raise ImageError(f"{self.name(index)}: cannot be read ({reason(error)})") from error
        return load_image(source, self.name(index), channels)

    def subset(self, indices: Sequence[int]) -> "Split":
        """Some of the images."""
        return Split(self.reader, self.title, [self.indices[i] for i in indices])

    def first_of_each(self, limit: int | None) -> "Split":
        """The first `limit` images of every class; all for None."""
        if limit is None:
            return self
        seen: Counter[int] = Counter()
        kept = []
        for index, target in enumerate(self.targets):
            seen[target] += 1
            if seen[target] <= limit:
                kept.append(index)
        return self.subset(kept)


def open_split(
    path: str | None,
    which: str,
    classes: Classes = None,
    *,
    source: str = "auto",
    split: str | None = None,
    class_map: str | None = None,
    image_key: str = "image",
    label_key: str = "label",
    limit: int | None = None,
) -> Split:
    """Open a split for training or evaluation.

    Args:
        path: folder, tar file, folder of shards or hfds/NAME; None for the embedded data.
        which: "train" or "val".
        classes: names in the order of the labels; by default the names found.
        source: "folder", "tar", "wds", "hfds", or "auto" to decide by the path.
        split: its name; by default train or training, or val, validation, test or eval.
        class_map: a text file of class names, if `classes` are not given.
        image_key, label_key: columns of a Hugging Face dataset.
        limit: use the first images of every class only, this many.

    Raises:
        FileError: there is no such split, it is empty, or its classes do not fit.
    """
    if path is not None and not path.strip():
        raise InputError("data.path: the path is empty; give a folder, or leave it out for the embedded data")
    names = (split,) if split else SPLITS[which]
    if path is None:
        return _open_embedded(split or {"train": "train", "val": "test"}[which], classes).first_of_each(limit)
    if which == "train" and Path(path).is_file():
        raise FileError(f"{path}: one file holds no splits; give --data a folder with train.tar and val.tar")
    known = classes or _read_class_map(class_map)
    try:
        if source == "hfds" or (source == "auto" and path.startswith(HF)):
            found = _open_hub(path.removeprefix(HF), names, known, image_key, label_key)
        else:
            found = _open_path(source, Path(path), names, known)
    except OSError as error:
        raise FileError(f"{error.filename or path}: cannot be read ({reason(error)}); check its permissions") from error
    _check(found, which)
    return found.first_of_each(limit)


def _open_embedded(name: str, classes: Classes) -> Split:
    if name not in ("train", "test"):
        raise FileError(f"the embedded data has no split {name!r}; expected train or test")
    return Split(TarReader(embedded() / f"{name}.tar", classes), f"the embedded Fashion-MNIST ({name})")


def _open_path(source: str, root: Path, names: Sequence[str], classes: Classes) -> Split:
    if not root.is_dir() and not (root.is_file() and root.suffix == ".tar"):
        raise FileError(f"{root}: there is no such folder or tar file; give --data a folder with train and val")
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
    found = ", ".join(sorted(item.name for item in root.iterdir())[:6]) or "nothing"
    raise FileError(
        f"{root}: there is no split {' or '.join(names)}; it holds {found}; "
        f"name the splits with --data.train_split and --data.val_split"
    )


def _folder_reader(folder: Path, source: str, classes: Classes) -> Reader:
    """A folder of class folders, of one tar file per class, or of shards."""
    if any(item.is_dir() for item in folder.iterdir()) or not (tars := sorted(folder.glob("*.tar"))):
        return FolderReader(str(folder), classes)
    if source == "auto" and ShardReader.recognizes(tars[0]):
        return ShardReader(tars, classes)
    return TarReader(folder, classes)


def _open_hub(name: str, names: Sequence[str], classes: Classes, image_key: str, label_key: str) -> Split:
    try:
        from sightline.data.readers.hub import HubReader
    except ImportError as error:
        raise InputError("data.path: Hugging Face datasets need datasets: pip install datasets") from error
    last: Exception | None = None
    for split in names:
        try:
            return Split(HubReader(name, split, classes, image_key, label_key), f"{name}:{split}")
        except FileError:
            raise
        except (ValueError, OSError, RuntimeError) as error:
            last = error
    assert last is not None
    raise FileError(f"{name}: no dataset or no split {' or '.join(names)} ({reason(last)})")


def _check(split: Split, which: str) -> None:
    if not len(split):
        raise FileError(f"{split.title}: no images")
    if len(split.classes) < 2:
        raise FileError(f"{split.title}: only one class, {split.classes[0]!r}; classification needs at least two")
    missing = set(range(len(split.classes))) - set(split.targets)
    if which == "train" and missing:
        names = [split.classes[i] for i in sorted(missing)]
        raise FileError(f"{split.title}: no images of class {', '.join(names[:4])}; add some or remove the class")


def _read_class_map(path: str | None) -> Classes:
    if path is None:
        return None
    try:
        names = tuple(line.strip() for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"data.class_map: {path} cannot be read; give a text file with one class per line") from error
    if len(set(names)) != len(names) or len(names) < 2:
        raise FileError(f"data.class_map: {path} needs two or more different names, one per line")
    return names
