"""One folder of images per class, and what else may be in it: other files, links, stray images.

The class of an image is the folder right below the split, however deep the image lies in it. Links to images and to
folders are followed; a folder that would be read twice, as in a loop, is an error. Hidden files are ignored.
"""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from timm.utils.misc import natural_key

from sightline.data.images import EXTENSIONS
from sightline.data.splits import Reader
from sightline.util.errors import FileError


class FolderReader(Reader):
    """A folder per class.

    Args:
        root: the folder of a split.
        classes: names in the order of the labels; by default the folders with images, numbers in them in their order.

    Raises:
        FileError: no images, none of a class, or some of a class that is not in `classes`.
    """

    def __init__(self, root: str, classes: tuple[str, ...] | None = None) -> None:
        self.root = root
        self._others: list[str] = []
        self._seen = {_inode(root): root}
        self._lent: list[tuple[str, str]] = []
        found: dict[str, list[str]] = {}
        for item in sorted(_entries(root), key=lambda item: natural_key(item.name)):
            if os.path.isdir(item):
                found[item.name] = list(self._images(item.path, item.name))
            else:
                self._others.append(item.path)
        full = tuple(name for name, paths in found.items() if paths)
        if not full:
            raise FileError(f"{root}: no images in it; it needs a folder with images for every class")
        if classes is None and (empty := [name for name in found if name not in full]):
            raise FileError(f"{root}: no images of class {', '.join(empty[:4])}; fill its folder or remove it")
        self.classes = classes or full
        numbers = {name: i for i, name in enumerate(self.classes)}
        # Images of a class that is not in training would be left out silently.
        if strange := [name for name in full if name not in numbers]:
            known = len(numbers)
            raise FileError(f"{root}: class {strange[0]!r} is not among the {known} of training; rename the folder")
        pairs = [(path, numbers[name]) for name in full for path in found[name]]
        pairs.sort(key=lambda pair: natural_key(pair[0]))
        self.paths, self.targets = [path for path, _ in pairs], [target for _, target in pairs]
        self.notes = self._notes()

    def source(self, index: int) -> str:
        return self.paths[index]

    def name(self, index: int) -> str:
        return os.path.relpath(self.paths[index], self.root)

    def _images(self, folder: str, name: str) -> Iterator[str]:
        """The images below a folder of the class `name`."""
        inode = _inode(folder)
        if inode in self._seen:
            raise FileError(f"{folder}: a link to {self._seen[inode]}, which would be read twice; remove the link")
        self._seen[inode] = folder
        for item in _entries(folder):
            if os.path.isdir(item):  # unlike its own method, false for a link to itself
                yield from self._images(item.path, name)
            elif os.path.splitext(item.name)[1].lower() not in EXTENSIONS:
                self._others.append(item.path)
            else:
                if item.is_symlink() and (owner := self._owner(item.path)) not in (None, name):
                    self._lent.append((item.path, str(owner)))
                yield item.path

    def _owner(self, link: str) -> str | None:
        """The class in whose folder the image behind a link lies; None if it lies outside of this split."""
        target = os.path.normpath(os.path.join(os.path.dirname(link), os.readlink(link)))
        inside = os.path.relpath(target, self.root).split(os.sep)
        return inside[0] if len(inside) > 1 and inside[0] != os.pardir else None

    def _notes(self) -> tuple[str, ...]:
        notes = []
        if self._others:
            kinds = Counter(_kind(path, self.root) for path in self._others)
            listed = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(4))
            more = " and others" if len(kinds) > 4 else ""
            count = len(self._others)
            notes.append(
                f"{self.root}: {count:,} file{'s' * (count > 1)} passed over ({listed}{more}), such as "
                f"{os.path.relpath(min(self._others), self.root)}; images lie in class folders and end in "
                f"{', '.join(EXTENSIONS)}"
            )
        if self._lent:
            (path, owner), count = min(self._lent), len(self._lent)
            notes.append(
                f"{self.root}: {count:,} image{'s' * (count > 1)} linked from another class, such as "
                f"{os.path.relpath(path, self.root)} from {owner}; each counts for both"
            )
        return tuple(notes)


def _inode(folder: str) -> tuple[int, int]:
    """The identity of a folder, by whatever path it is reached."""
    status = os.stat(folder)
    return status.st_dev, status.st_ino


def _entries(folder: str) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as items:
        return [item for item in items if not item.name.startswith(".")]


def _kind(path: str, root: str) -> str:
    ending = Path(path).suffix.lower()
    if ending in EXTENSIONS:  # right in the split
        return "outside of class folders"
    return ending or "without an ending"
