"""timm's reader of tar files, with every image format that Pillow reads."""

import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from timm.data import get_img_extensions, set_img_extensions
from timm.data.readers.reader_image_in_tar import ReaderImageInTar

from sightline.data.images import EXTENSIONS
from sightline.util.errors import FileError
from sightline.util.files import reason


def read_tar(path: Path, classes: tuple[str, ...] | None) -> ReaderImageInTar:
    """A tar file with a folder per class, or a folder with a tar file per class.

    Raises:
        FileError: it cannot be read, or has no images.
    """
    class_map = {name: index for index, name in enumerate(classes)} if classes else ""
    try:
        with _all_extensions():
            # timm would cache the index of a large archive as a pickle next to it.
            return ReaderImageInTar(str(path), class_map=class_map, cache_tarinfo=False)
    except (tarfile.TarError, ValueError, AssertionError, OSError) as error:
        raise FileError(f"{path}: no images found in it as a tar file ({reason(error)})") from error


@contextmanager
def _all_extensions() -> Iterator[None]:
    """By default, timm only looks for .png, .jpg and .jpeg."""
    before = get_img_extensions()
    set_img_extensions(EXTENSIONS)
    try:
        yield
    finally:
        set_img_extensions(before)


def forget_handles(reader: object) -> None:
    """After a fork: the offset of an open archive is shared with the parent process."""
    state = getattr(reader, "tar_state", None)
    for tar in state.values() if isinstance(state, dict) else [state] if state is not None else []:
        tar.reset()
        for child in tar.children.values():
            child.tf = None
