"""Tar files read in any order: indexed once by their headers, images are read at their offsets.

So the order of an epoch, its resumption and its division among processes are the same as for folders, and processes
share no open file.
"""

import json
import os
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from timm.utils.misc import natural_key

from sightline.data.images import EXTENSIONS
from sightline.data.splits import Reader
from sightline.util.errors import FileError
from sightline.util.files import reason

LABELS = (".cls", ".json")
Image = tuple[Path, int, int, str]  # archive, offset, bytes, name


class ArchiveReader(Reader):
    """Images at offsets in files."""

    images: list[Image]

    def source(self, index: int) -> bytes:
        path, offset, size, _ = self.images[index]
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(size)

    def name(self, index: int) -> str:
        return self.images[index][3]


class TarReader(ArchiveReader):
    """A tar file with a folder per class, or a folder with a tar file per class; either may hold further tar files.

    Args:
        path: the file or folder.
        classes: names in the order of the labels, and images of others are left out; by default the names found.
    """

    def __init__(self, path: Path, classes: tuple[str, ...] | None = None) -> None:
        found: list[tuple[str, Image]] = []
        for tar in [path] if path.is_file() else sorted(path.glob("*.tar")):
            with _opened(tar) as archive:
                inside = _images(archive, "" if path.is_file() else tar.stem)
                found += [(label, (tar, offset, size, name)) for label, offset, size, name in inside]
        self.classes = classes or tuple(sorted({label for label, _ in found}, key=natural_key))
        numbers = {name: i for i, name in enumerate(self.classes)}
        kept = [(image, numbers[label]) for label, image in found if label in numbers]
        if not kept:
            raise FileError(f"{path}: no images in it as a tar file")
        kept.sort(key=lambda item: natural_key(item[0][3]))
        self.images, self.targets = [image for image, _ in kept], [target for _, target in kept]


class ShardReader(ArchiveReader):
    """WebDataset shards: tar files whose entries KEY.jpg and KEY.cls (or KEY.json) make a sample.

    Args:
        paths: tar files.
        classes: names in the order of the labels; by default the labels themselves are the names.
    """

    def __init__(self, paths: Sequence[Path], classes: tuple[str, ...] | None = None) -> None:
        samples = [sample for path in paths for sample in _samples(path)]
        self.images = [image for image, _ in samples]
        labels = [label for _, label in samples]
        if not labels:
            raise FileError(f"{paths[0]}: no samples; a shard holds KEY.jpg next to KEY.cls or KEY.json")
        numbers = all(label.isdecimal() for label in labels)
        found = sorted(set(labels), key=int) if numbers else sorted(set(labels))
        if classes is None:
            highest = int(found[-1]) + 1 if numbers else 0
            classes = tuple(str(i) for i in range(highest)) if numbers and highest <= 10**6 else tuple(found)
        self.classes = classes
        of = {name: i for i, name in enumerate(classes)} | {str(i): i for i in range(len(classes)) if numbers}
        if strange := [label for label in found if label not in of]:
            raise FileError(f"{paths[0]}: label {strange[0]!r} is not one of the {len(classes)} classes")
        self.targets = [of[label] for label in labels]

    @staticmethod
    def recognizes(path: Path) -> bool:
        """Whether the first entries of an archive are a sample."""
        with _opened(path) as archive:
            return any(member.name.endswith(LABELS) for member, _ in zip(archive, range(8), strict=False))


@contextmanager
def _opened(path: Path) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(path, "r:") as archive:
            yield archive
    except (tarfile.TarError, OSError, ValueError, OverflowError, RecursionError) as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"{path}: not a readable tar file ({reason(error)}); make or download it again") from error


def _images(archive: tarfile.TarFile, folder: str, start: int = 0) -> Iterator[tuple[str, int, int, str]]:
    """Class, offset, bytes and name of the images in an archive and in the archives inside it."""
    for member in archive:
        path, ending = os.path.splitext(member.name)
        if member.isfile() and ending.lower() == ".tar":
            with tarfile.open(fileobj=archive.extractfile(member), mode="r:") as inner:
                yield from _images(inner, os.path.basename(path), start + member.offset_data)
        elif member.isfile() and ending.lower() in EXTENSIONS:
            label = os.path.basename(os.path.dirname(os.path.join(folder, member.name)))
            yield label, start + member.offset_data, member.size, member.name


def _samples(path: Path) -> list[tuple[Image, str]]:
    """The images of a shard and their labels."""
    images: dict[str, Image] = {}
    labels: dict[str, str] = {}
    with _opened(path) as archive:
        for member in archive:
            key, extension = os.path.splitext(member.name)
            if member.isfile() and extension.lower() in EXTENSIONS:
                images[key] = (path, member.offset_data, member.size, f"{path.name}/{member.name}")
            elif member.isfile() and extension in LABELS:
                text = archive.extractfile(member).read(1 << 16)  # type: ignore[union-attr]
                labels[key] = _label(text, extension, f"{path}/{member.name}")
    if unlabeled := images.keys() - labels.keys():
        raise FileError(f"{path}: {min(unlabeled)} has no label; a sample needs KEY.cls or KEY.json")
    return [(image, labels[key]) for key, image in images.items()]


def _label(text: bytes, extension: str, name: str) -> str:
    """The label in a .cls file, or under `label` or `cls` in a .json one."""
    try:
        if extension == ".cls":
            return text.decode().strip()
        values = json.loads(text)
        return str(values["label"] if "label" in values else values["cls"])
    except (ValueError, KeyError, TypeError) as error:
        raise FileError(f"{name}: not a label; write a number or a name into it") from error
