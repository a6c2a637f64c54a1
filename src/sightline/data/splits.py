"""Labeled images: folders, tar files, WebDataset shards and Hugging Face datasets, through timm's readers."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from PIL import Image

from sightline.data.images import ImageError, Source, load_image
from sightline.data.readers.shards import ShardReader
from sightline.util.errors import FileError, InputError
from sightline.util.files import reason

SPLITS = {"train": ("train", "training"), "val": ("val", "validation", "test", "eval")}
HF = "hfds/"


class ImageReader(Protocol):
    """A reader of timm, or our own."""

    def __getitem__(self, index: int) -> tuple[Source, int]: ...

    def filename(self, index: int) -> str: ...


class Split:
    """Labeled images, read one at a time.

    Args:
        reader: gives the file of an image by its index.
        targets: the class of every image of the reader, by index.
        classes: names, in the order of the labels.
        title: what to call it in messages.
        indices: the images of the reader to use; by default all.
        notes: what a user should know about it, one line each.
    """

    def __init__(
        self, reader: ImageReader, targets: Sequence[int] | Mapping[int, int], classes: tuple[str, ...], title: str,
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
        """The file name of an image, for messages."""
        return f"{self.title}/{self.reader.filename(self.indices[index]) or self.indices[index]}"

    def image(self, index: int, channels: int = 3) -> Image.Image:
        """The decoded image; raises `ImageError` with its name."""
        if os.getpid() != self._process:
            from sightline.data.readers.tar import forget_handles

            self._process = os.getpid()
            forget_handles(self.reader)
        try:
            source = self.reader[self.indices[index]][0]
        except OSError as error:
            raise ImageError(f"{self.name(index)}: cannot be read ({error.strerror or error})") from error
        try:
            return load_image(source, self.name(index), channels)
        finally:
            if hasattr(source, "close"):
                source.close()

    def first_of_each(self, limit: int | None) -> "Split":
        """The first `limit` images of every class; all for None."""
        if limit is None:
            return self
        seen = [0] * len(self.classes)
        kept = []
        for index, target in zip(self.indices, self.targets, strict=True):
            if seen[target] < limit:
                seen[target] += 1
                kept.append(index)
        targets = dict(zip(self.indices, self.targets, strict=True))
        return Split(self.reader, targets, self.classes, self.title, kept, self.notes)


def open_split(
    path: str | None,
    which: str,
    classes: tuple[str, ...] | None = None,
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
        return _open_embedded(split, which, classes).first_of_each(limit)
    if which == "train" and Path(path).is_file():
        raise FileError(f"{path}: one file holds no splits; give --data a folder with train.tar and val.tar")
    known = classes or _read_class_map(class_map)
    if source == "hfds" or (source == "auto" and path.startswith(HF)):
        found = _open_hub(path, names, known, image_key, label_key)
    else:
        found = _open_path(source, Path(path), names, known)
    _check(found, which)
    return found.first_of_each(limit)


def _open_embedded(asked: str | None, which: str, classes: tuple[str, ...] | None) -> Split:
    from sightline.data.embedded import embedded

    name = asked or {"train": "train", "val": "test"}[which]
    if name not in ("train", "test"):
        raise FileError(f"the embedded data has no split {name!r}; expected train or test")
    return _open_tar(embedded() / f"{name}.tar", classes, f"the embedded Fashion-MNIST ({name})")


def _open_path(source: str, root: Path, names: Sequence[str], classes: tuple[str, ...] | None) -> Split:
    if not root.exists():
        raise FileError(f"{root}: there is no such folder or file; give --data a folder with train and val")
    if root.is_file():
        if root.suffix != ".tar":
            raise FileError(f"{root}: not a folder or a tar file; give --data a folder with train and val")
        return _open_shards([root], classes) if source == "wds" else _open_tar(root, classes)
    for name in names:
        if source in ("auto", "folder") and (root / name).is_dir():
            return _open_inside(root / name, source, classes)
        if source in ("auto", "tar") and (root / f"{name}.tar").is_file():
            return _open_tar(root / f"{name}.tar", classes)
        shards = sorted({*root.glob(f"*{name}*.tar"), *root.glob(f"{name}/*.tar")})
        if source in ("auto", "wds") and shards:
            return _open_shards(shards, classes)
    found = ", ".join(sorted(item.name for item in root.iterdir())[:6]) or "nothing"
    raise FileError(
        f"{root}: there is no split {' or '.join(names)}; it holds {found}; "
        f"name the splits with --data.train_split and --data.val_split"
    )


def _open_inside(folder: Path, source: str, classes: tuple[str, ...] | None) -> Split:
    """A folder of class folders, of one tar file per class, or of shards."""
    if not any(item.is_dir() for item in folder.iterdir()) and (tars := sorted(folder.glob("*.tar"))):
        if source == "auto" and ShardReader.recognises(tars[0]):
            return _open_shards(tars, classes)
        return _open_tar(folder, classes)
    return _open_folder(folder, classes)


def _open_folder(folder: Path, classes: tuple[str, ...] | None) -> Split:
    from sightline.data.readers.folder import FolderReader

    try:
        reader = FolderReader(str(folder), classes)
    except OSError as error:
        raise FileError(
            f"{error.filename or folder}: cannot be read ({error.strerror}); check its permissions"
        ) from error
    if reader.strange:  # images of a class that is not in training would be left out silently
        raise FileError(
            f"{folder}: class {reader.strange[0]!r} is not among the {len(reader.class_to_idx)} of training; "
            f"rename the folder"
        )
    if not reader.samples:
        raise FileError(f"{folder}: no images in it; it needs a folder with images for every class")
    if reader.empty and classes is None:
        many = len(reader.empty) > 1
        raise FileError(
            f"{folder}: no images of class {', '.join(reader.empty[:4])}; fill the folder{'s' * many} or remove "
            f"{'them' if many else 'it'}"
        )
    targets = [target for _, target in reader.samples]
    return Split(reader, targets, _names(reader.class_to_idx), str(folder), notes=reader.notes)


def _open_tar(path: Path, classes: tuple[str, ...] | None, title: str | None = None) -> Split:
    from sightline.data.readers.tar import read_tar

    reader = read_tar(path, classes)
    return Split(reader, reader.targets, _names(reader.class_name_to_idx), title or str(path))


def _open_shards(paths: Sequence[Path], classes: tuple[str, ...] | None) -> Split:
    reader = ShardReader(paths, classes)
    return Split(reader, reader.targets, reader.classes, str(paths[0].parent))


def _open_hub(
    path: str, names: Sequence[str], classes: tuple[str, ...] | None, image_key: str, label_key: str
) -> Split:
    try:
        from sightline.data.readers.hub import HubReader
    except ImportError as error:
        raise InputError("data.path: Hugging Face datasets need datasets: pip install datasets") from error
    name = path.removeprefix(HF)
    last: Exception | None = None
    for split in names:
        try:
            reader = HubReader(name, split, image_key, label_key)
            return Split(reader, reader.targets, classes or reader.classes, f"{name}:{split}")
        except KeyError as error:
            columns = ", ".join(map(str, error.args[1:]))
            raise FileError(
                f"{name}: no column {error.args[0]!r} among {columns}; give --data.image_key and --data.label_key"
            ) from error
        except (ValueError, OSError, RuntimeError) as error:
            last = error
    assert last is not None
    raise FileError(f"{name}: no dataset or no split {' or '.join(names)} ({reason(last)})")


def _check(split: Split, which: str) -> None:
    if len(split) == 0:
        raise FileError(f"{split.title}: no images")
    if len(split.classes) < 2:
        raise FileError(f"{split.title}: only one class, {split.classes[0]!r}; classification needs at least two")
    missing = set(range(len(split.classes))) - set(split.targets)
    if which == "train" and missing:
        names = [split.classes[i] for i in sorted(missing)]
        raise FileError(f"{split.title}: no images of class {', '.join(names[:4])}; add some or remove the class")


def _read_class_map(path: str | None) -> tuple[str, ...] | None:
    if path is None:
        return None
    try:
        names = tuple(line.strip() for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"data.class_map: {path} cannot be read; give a text file with one class per line") from error
    if len(set(names)) != len(names) or len(names) < 2:
        raise FileError(f"data.class_map: {path} needs two or more different names, one per line")
    return names


def _names(class_to_idx: Mapping[str, int]) -> tuple[str, ...]:
    return tuple(sorted(class_to_idx, key=lambda name: class_to_idx[name]))
