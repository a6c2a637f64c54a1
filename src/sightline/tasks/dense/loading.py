"""Images with annotations: what their readers share."""

from pathlib import Path
from typing import Protocol

from PIL import ExifTags, Image

from sightline.data.images import ImageError, load_image

# From upright back to the pixels as stored, by EXIF orientation, for those that turn an image on its side.
TURN_BACK = {
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


class AnnotationError(ImageError):
    """An annotation that cannot be used; the message is one line that begins with its file."""


class Split(Protocol):
    """The interface of a split."""

    @property
    def notes(self) -> tuple[str, ...]: ...

    def __len__(self) -> int: ...


def load_annotated(path: Path, height: int, width: int) -> Image.Image:
    """The RGB image that belongs to annotations for `height` x `width` pixels.

    That is the upright one, unless its EXIF orientation turns it on its side and only the stored pixels have that size.
    """
    image = load_image(path)
    if height == width or (image.width, image.height) != (height, width):
        return image
    with Image.open(path) as file:
        turn = file.getexif().get(ExifTags.Base.Orientation)
    return image.transpose(TURN_BACK[turn]) if turn in TURN_BACK else image
