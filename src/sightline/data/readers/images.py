"""Images without labels, from files, folders, patterns and zip files."""

import os
from collections.abc import Sequence
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from sightline.data.images import EXTENSIONS, ImageError, Source, find_images
from sightline.data.splits import Reader
from sightline.util.errors import FileError, InputError
from sightline.util.files import reason

MAX_BYTES = 1 << 28  # of an image in a zip file


class ImagesReader(Reader):
    """Every image counts as one of the class "image".

    Args:
        given: files, folders with all that is in them, patterns, and zip files.

    Raises:
        InputError: one of them does not exist or has no images.
        FileError: a zip file that cannot be read.
    """

    classes = ("image",)
    whole_names = True

    def __init__(self, given: Sequence[str]) -> None:
        if not given:
            raise InputError("data: no images to train on; give a folder or a zip file")
        self._items: list[tuple[str, str]] = []  # a path, and the name inside it if it is a zip file
        self._open: dict[tuple[int, str], ZipFile] = {}
        for text in given:
            if Path(text).suffix.lower() == ".zip" and Path(text).is_file():
                self._items += [(text, name) for name in _members(text)]
            else:
                self._items += [(str(path), "") for path in find_images([text])]
        self.targets = [0] * len(self._items)

    def source(self, index: int) -> Source:
        path, name = self._items[index]
        if not name:
            return path
        key = (os.getpid(), path)  # loader processes must not share an open file
        if key not in self._open:
            self._open = {**self._open, key: ZipFile(path)}
        try:
            return self._open[key].read(name)
        except (BadZipFile, NotImplementedError, RuntimeError, ValueError) as error:
            raise ImageError(f"{self.name(index)}: cannot be read ({reason(error)})") from error

    def name(self, index: int) -> str:
        path, name = self._items[index]
        return f"{path}/{name}" if name else path

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_open": {}}


def _members(path: str) -> list[str]:
    """The images in a zip file, in their order."""
    try:
        with ZipFile(path) as file:
            infos = [info for info in file.infolist() if info.filename.lower().endswith(EXTENSIONS)]
    except (OSError, BadZipFile) as error:
        raise FileError(f"{path}: cannot be read as a zip file ({reason(error)})") from error
    if large := [info.filename for info in infos if info.file_size > MAX_BYTES]:
        raise FileError(f"{path}: {large[0]} is larger than {MAX_BYTES:,} bytes; make it smaller")
    if not infos:
        raise InputError(f"{path}: no images in this zip file ({', '.join(EXTENSIONS)})")
    return sorted(info.filename for info in infos)
