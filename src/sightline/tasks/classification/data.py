"""Where images and labels come from: folders, tar files, WebDataset shards, Hugging Face data sets; through timm."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image

from sightline.data.images import EXTENSIONS, ImageError, load_image
from sightline.data.readers.shards import ShardReader
from sightline.tasks.classification.config import Data

SPLITS = {"train": ("train", "training"), "val": ("val", "validation", "test", "eval")}
HF = "hfds/"


class DataError(ValueError):
    """Data that cannot be used; the message is one line that says why."""


class Split:
    """Labelled images, read one at a time.

    Args:
        reader: a reader of timm, or one that behaves alike.
        targets: the class of every image of the reader.
        classes: names, in the order of the labels.
        title: what to call it in messages.
        indices: the images of the reader to use; by default all.
        notes: what a user should know of it, a line each.
    """

    def __init__(
        self, reader: Any, targets: Sequence[int], classes: tuple[str, ...], title: str,
        indices: Sequence[int] | None = None, notes: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        self.reader = reader
        self.classes = classes
        self.title = title
        self.notes = notes
        self.indices = list(range(len(targets))) if indices is None else list(indices)
        self.targets = [int(targets[i]) for i in self.indices]
        self._process = os.getpid()

    def __len__(self) -> int:
        return len(self.indices)

    def name(self, index: int) -> str:
        """The file of an image, as messages call it."""
        return f"{self.title}/{self.reader.filename(self.indices[index]) or self.indices[index]}"

    def image(self, index: int, channels: int = 3) -> Image.Image:
        """The decoded image; raises `ImageError` with its name."""
        if os.getpid() != self._process:
            self._process = os.getpid()
            _forget_handles(self.reader)
        try:
            source = self.reader[self.indices[index]][0]
        except OSError as error:
            raise ImageError(f"{self.name(index)}: cannot be read ({error.strerror or error})") from error
        try:
            return load_image(source, self.name(index), channels)
        finally:
            if hasattr(source, "close"):
                source.close()


def open_split(data: Data, which: str, classes: tuple[str, ...] | None = None) -> Split:
    """The split `which`, "train" or "val"; labels follow `classes` where they are given, else the names found.

    Raises:
        DataError: there is no such split, it is empty, or its classes do not fit.
    """
    if data.path is not None and not data.path.strip():
        raise DataError("data.path: the path is empty; give a folder, or leave it out for the embedded data")
    asked = data.train_split if which == "train" else data.val_split
    names = (asked,) if asked else SPLITS[which]
    if data.path is None:
        from sightline.data.embedded import embedded

        name = _embedded_split(asked, which)
        split = _open_tar(embedded() / f"{name}.tar", classes, f"the embedded Fashion-MNIST ({name})")
        return _limited(split, data.limit)
    if which == "train" and Path(data.path).is_file():
        raise DataError(f"{data.path}: one file holds no splits; give --data a folder with train.tar and val.tar")
    given = classes or _read_class_map(data.class_map)
    if data.source == "hfds" or (data.source == "auto" and data.path.startswith(HF)):
        split = _open_hf(data, names, given)
    else:
        split = _open_path(data, Path(data.path), names, given)
    _check(split, which, given)
    return _limited(split, data.limit)


def _embedded_split(asked: str | None, which: str) -> str:
    split = asked or {"train": "train", "val": "test"}[which]
    if split not in ("train", "test"):
        raise DataError(f"the embedded data have no split {split!r}; they have train and test")
    return split


def _open_path(data: Data, root: Path, names: Sequence[str], classes: tuple[str, ...] | None) -> Split:
    if not root.exists():
        raise DataError(f"{root}: there is no such folder or file; give --data a folder with train and val")
    kind = data.source
    if root.is_file():
        if root.suffix != ".tar":
            raise DataError(f"{root}: not a folder or a tar file; give --data a folder with train and val")
        return _open_shards([root], classes) if kind == "wds" else _open_tar(root, classes)
    for name in names:
        if kind in ("auto", "folder") and (root / name).is_dir():
            return _open_inside(root / name, kind, classes)
        if kind in ("auto", "tar") and (root / f"{name}.tar").is_file():
            return _open_tar(root / f"{name}.tar", classes)
        shards = sorted({*root.glob(f"*{name}*.tar"), *root.glob(f"{name}/*.tar")})
        if kind in ("auto", "wds") and shards:
            return _open_shards(shards, classes)
    found = ", ".join(sorted(item.name for item in root.iterdir())[:6]) or "nothing"
    raise DataError(
        f"{root}: there is no split {' or '.join(names)}; it holds {found}; "
        f"name the splits with --data.train_split and --data.val_split"
    )


def _open_inside(folder: Path, kind: str, classes: tuple[str, ...] | None) -> Split:
    """A folder of class folders; of one tar file a class; or of shards."""
    if not any(item.is_dir() for item in folder.iterdir()) and (tars := sorted(folder.glob("*.tar"))):
        if kind == "auto" and ShardReader.recognises(tars[0]):
            return _open_shards(tars, classes)
        return _open_tar(folder, classes)
    return _open_folder(folder, classes)


def _open_folder(folder: Path, classes: tuple[str, ...] | None) -> Split:
    from sightline.data.readers.folder import FolderError, FolderReader

    try:
        reader = FolderReader(str(folder), classes)
    except FolderError as error:
        raise DataError(str(error)) from error
    except OSError as error:
        where = error.filename or folder
        raise DataError(f"{where}: cannot be read ({error.strerror}); see its permissions") from error
    if reader.strange:  # images of a class that training does not know would be left out in silence
        raise DataError(
            f"{folder}: class {reader.strange[0]!r} is not among the {len(reader.class_to_idx)} of training; "
            f"rename the folder"
        )
    if not reader.samples:
        raise DataError(f"{folder}: no images in it; it needs a folder with images for every class")
    if reader.empty and classes is None:
        many = len(reader.empty) > 1
        raise DataError(
            f"{folder}: no images of class {', '.join(reader.empty[:4])}; fill the folder{'s' * many} or remove "
            f"{'them' if many else 'it'}"
        )
    targets = [target for _, target in reader.samples]
    return Split(reader, targets, _names(reader.class_to_idx), str(folder), notes=reader.notes)


def _open_tar(path: Path, classes: tuple[str, ...] | None, title: str | None = None) -> Split:
    import tarfile

    from timm.data.readers.reader_image_in_tar import ReaderImageInTar

    try:
        with _every_kind():
            # timm would keep the index of a large archive as a pickle beside it.
            reader = ReaderImageInTar(str(path), class_map=_map(classes), cache_tarinfo=False)
    except (tarfile.TarError, ValueError, AssertionError, OSError) as error:
        raise DataError(f"{path}: no images found in it as a tar file ({_line(error)})") from error
    return Split(reader, reader.targets, _names(reader.class_name_to_idx), title or str(path))


@contextmanager
def _every_kind() -> Iterator[None]:
    """timm looks for .png, .jpg and .jpeg alone unless it is told of others."""
    from timm.data import get_img_extensions, set_img_extensions

    before = get_img_extensions()
    set_img_extensions(EXTENSIONS)
    try:
        yield
    finally:
        set_img_extensions(before)


def _open_shards(paths: Sequence[Path], classes: tuple[str, ...] | None) -> Split:
    reader = ShardReader(paths, classes)
    return Split(reader, reader.targets, reader.classes, str(paths[0].parent))


def _open_hf(data: Data, names: Sequence[str], classes: tuple[str, ...] | None) -> Split:
    try:
        from sightline.data.readers.hub import HubReader
    except ImportError as error:
        raise DataError("Hugging Face data sets need datasets: pip install datasets") from error
    name = str(data.path).removeprefix(HF)
    last: Exception | None = None
    for split in names:
        try:
            reader = HubReader(name, split, data.image_key, data.label_key)
            return Split(reader, reader.targets, classes or reader.classes, f"{name}:{split}")
        except KeyError as error:
            columns = ", ".join(map(str, error.args[1:]))
            raise DataError(
                f"{name}: no column {error.args[0]!r} among {columns}; give --data.image_key and --data.label_key"
            ) from error
        except (ValueError, OSError, RuntimeError) as error:
            last = error
    raise DataError(f"{name}: no data set or no split {' or '.join(names)} ({_line(last)})")


def _check(split: Split, which: str, given: tuple[str, ...] | None) -> None:
    if len(split) == 0:
        raise DataError(f"{split.title}: no images")
    if len(split.classes) < 2:
        raise DataError(f"{split.title}: only one class, {split.classes[0]!r}; classification needs at least two")
    missing = set(range(len(split.classes))) - set(split.targets)
    if which == "train" and missing:
        names = [split.classes[i] for i in sorted(missing)]
        raise DataError(f"{split.title}: no images of class {', '.join(names[:4])}; add some or remove the class")


def _limited(split: Split, limit: int | None) -> Split:
    """The first `limit` images of every class."""
    if limit is None:
        return split
    seen = [0] * len(split.classes)
    kept = []
    for index, target in zip(split.indices, split.targets, strict=True):
        if seen[target] < limit:
            seen[target] += 1
            kept.append(index)
    targets = dict(zip(split.indices, split.targets, strict=True))
    return Split(split.reader, targets, split.classes, split.title, kept, split.notes)  # type: ignore[arg-type]


def _read_class_map(path: str | None) -> tuple[str, ...] | None:
    if path is None:
        return None
    try:
        names = tuple(line.strip() for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"data.class_map: {path} cannot be read; give a text file with a class a line") from error
    if len(set(names)) != len(names) or len(names) < 2:
        raise DataError(f"data.class_map: {path} needs two or more different names, a line each")
    return names


def _map(classes: tuple[str, ...] | None) -> Any:
    return {name: index for index, name in enumerate(classes)} if classes else ""


def _names(class_to_idx: dict[str, int]) -> tuple[str, ...]:
    return tuple(sorted(class_to_idx, key=lambda name: class_to_idx[name]))


def _forget_handles(reader: Any) -> None:
    """After a fork: an open archive's place in the file is shared with the parent process."""
    state = getattr(reader, "tar_state", None)
    for tar in state.values() if isinstance(state, dict) else [state] if state is not None else []:
        tar.reset()
        for child in tar.children.values():
            child.tf = None


def _line(error: BaseException | None) -> str:
    text = str(error).strip().splitlines()
    return text[0][:160] if text else type(error).__name__
