"""WebDataset shards read in any order: tar files whose entries KEY.jpg and KEY.cls (or KEY.json) make a sample.

The archives are indexed once by their headers, and images are read at their offsets; so the order of an epoch, its
resumption and its division among processes are the same as for folders.
"""

import io
import json
import os
import tarfile
from collections.abc import Sequence
from pathlib import Path

from timm.data.readers.reader import Reader

from sightline.data.images import EXTENSIONS
from sightline.util.errors import FileError

LABELS = (".cls", ".json")


class ShardReader(Reader):
    """Images and labels of local shards.

    Args:
        paths: tar files.
        classes: names in the order of the labels; by default the labels themselves are the names.
    """

    def __init__(self, paths: Sequence[Path], classes: tuple[str, ...] | None = None) -> None:
        super().__init__()
        self.paths = list(paths)
        self.entries: list[tuple[int, int, int, str]] = []  # shard, offset, bytes, name
        labels: list[str] = []
        for number, path in enumerate(self.paths):
            self._index(number, path, labels)
        if not labels:
            raise FileError(f"{self.paths[0]}: no samples; a shard holds KEY.jpg next to KEY.cls or KEY.json")
        numbers = all(label.isdecimal() for label in labels)
        found = sorted(set(labels), key=int) if numbers else sorted(set(labels))
        if classes is None:
            highest = int(found[-1]) + 1 if numbers else 0
            classes = tuple(str(i) for i in range(highest)) if numbers and highest <= 10**6 else tuple(found)
        self.classes = classes
        of = {name: i for i, name in enumerate(classes)} | {str(i): i for i in range(len(classes)) if numbers}
        if strange := [label for label in found if label not in of]:
            raise FileError(f"{self.paths[0]}: label {strange[0]!r} is not one of the {len(classes)} classes")
        self.targets = [of[label] for label in labels]

    @staticmethod
    def recognises(path: Path) -> bool:
        """Whether the first entries of an archive are a sample."""
        try:
            with tarfile.open(path) as archive:
                names = [member.name for member, _ in zip(archive, range(8), strict=False)]
        except (tarfile.TarError, OSError):
            return False
        return any(name.endswith(LABELS) for name in names)

    def _index(self, number: int, path: Path, labels: list[str]) -> None:
        images: dict[str, tarfile.TarInfo] = {}
        found: dict[str, str] = {}
        try:
            with tarfile.open(path) as archive:
                for member in archive:
                    key, extension = os.path.splitext(member.name)
                    if member.isfile() and extension.lower() in EXTENSIONS:
                        images[key] = member
                    elif member.isfile() and extension in LABELS:
                        text = archive.extractfile(member).read(1 << 16)  # type: ignore[union-attr]
                        found[key] = _label(text, extension, f"{path}/{member.name}")
        except (tarfile.TarError, OSError) as error:
            raise FileError(f"{path}: not a readable tar file ({error}); make or download it again") from error
        for key, member in images.items():
            if key not in found:
                raise FileError(f"{path}: {member.name} has no label; a sample needs KEY.cls or KEY.json")
            self.entries.append((number, member.offset_data, member.size, member.name))
            labels.append(found[key])

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int) -> tuple[io.BytesIO, int]:
        shard, offset, size, _ = self.entries[index]
        with self.paths[shard].open("rb") as file:
            file.seek(offset)
            return io.BytesIO(file.read(size)), self.targets[index]

    def _filename(self, index: int, basename: bool = False, absolute: bool = False) -> str:
        shard, _, _, name = self.entries[index]
        return os.path.basename(name) if basename else f"{self.paths[shard].name}/{name}"


def _label(text: bytes, extension: str, name: str) -> str:
    """The label in a .cls file, or under `label` or `cls` in a .json one."""
    try:
        if extension == ".cls":
            return text.decode().strip()
        values = json.loads(text)
        return str(values["label"] if "label" in values else values["cls"])
    except (ValueError, KeyError, TypeError) as error:
        raise FileError(f"{name}: not a label; write a number or a name into it") from error
