"""Datasets of images with annotations: where their splits are, what they give, and what of them cannot be used."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from PIL import ExifTags, Image

from sightline.data.images import MAX_LOADED, ImageError, load_image, open_image
from sightline.tasks.dense.config import DenseData
from sightline.util.errors import FileError, InputError

# From upright back to the pixels as stored, by EXIF orientation, for those that turn an image on its side.
TURN_BACK = {
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}
Target = TypeVar("Target", covariant=True)
Truth = TypeVar("Truth", covariant=True)
Found = TypeVar("Found")


class AnnotationError(ImageError):
    """An annotation that cannot be used; the message is one line that begins with its file."""


class Split(Protocol[Target, Truth]):
    """Images with annotations; reading raises ImageError for one that cannot be used."""

    @property
    def title(self) -> str: ...

    @property
    def classes(self) -> tuple[str, ...]:
        """Names, in the order of the model's outputs."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What was left out, one line each."""

    def __len__(self) -> int: ...

    def read(self, index: int) -> tuple[Image.Image, Target]:
        """An RGB image and its annotations, to train on."""

    def read_eval(self, index: int) -> tuple[Image.Image, Truth]:
        """An RGB image and what predictions for it are compared with."""


def load_annotated(path: Path, height: int, width: int, annotations: object) -> Image.Image:
    """The RGB image that belongs to annotations for `height` x `width` pixels.

    That is the upright one, unless its EXIF orientation turns it on its side and only the stored pixels have that size.

    Raises:
        ImageError: it cannot be read, or has another size.
    """
    image = load_image(path, most=MAX_LOADED)
    if height != width and (image.width, image.height) == (height, width):
        with open_image(path) as file:
            turn = file.getexif().get(ExifTags.Base.Orientation)
        image = image.transpose(TURN_BACK[turn]) if turn in TURN_BACK else image
    if (image.height, image.width) != (height, width):
        raise AnnotationError(f"{path}: {image.height}x{image.width} pixels, but {annotations} has {height}x{width}")
    return image


def find_split(
    data: DenseData, which: str, usual: Sequence[str], find: Callable[[Path, str], Found | None], pattern: str
) -> Found:
    """Where the training or evaluation split is in the folder of the data.

    Args:
        data: the folder, and the name of the split if it is not a usual one.
        which: "train" or "val".
        usual: names to look for.
        find: gives the place of a split by folder and name; None if it is not there.
        pattern: where a split `*` is expected, for messages.
    """
    if data.path is None or not data.path.strip():
        raise InputError("data.path: expected the folder of the images; got none")
    root = Path(data.path)
    if not root.is_dir():
        raise InputError(f"data.path: no folder {root}; give the one that has {Path(pattern).parent}/")
    given = data.train_split if which == "train" else data.val_split
    names = (given,) if given else usual
    for name in names:
        if (found := find(root, name)) is not None:
            return found
    before, after = Path(pattern).name.split("*")
    there = sorted(path.name.removeprefix(before).removesuffix(after) for path in root.glob(pattern))
    has = f"; there are {', '.join(there)}" if there else ""
    what = repr(given) if given else which
    raise FileError(f"{root}: no {what} split; expected {root / pattern.replace('*', names[0])}{has}")


class LeftOut:
    """What of a dataset cannot be used, by reason.

    Args:
        source: its file or folder.
        on_error: "stop" raises FileError at the first, "skip" counts.
        skip: the option that skips, for messages.
    """

    def __init__(self, source: Path, on_error: str, skip: str) -> None:
        self.source, self.on_error, self.skip = source, on_error, skip
        self.messages: dict[str, list[str]] = {}

    def reject(self, why: str, message: str) -> None:
        """Stop at something wrong, or count it."""
        if self.on_error == "stop":
            raise FileError(f"{message}; repair or remove it, or pass {self.skip}")
        self.count(why, message)

    def count(self, why: str, message: str) -> None:
        """Count something that is left out in any case."""
        self.messages.setdefault(why, []).append(message)

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(
            f"{self.source}: {len(found):,} left out: {why}, such as {found[0]}" for why, found in self.messages.items()
        )
