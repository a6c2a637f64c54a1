"""The images to explore: samples of the package, the one that was given, and uploads, which are kept in memory only."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from importlib.resources import files
from io import BytesIO
from pathlib import Path

from PIL import Image
from torch import Tensor

from sightline.data.images import load_image, open_image, resize_transform
from sightline.explorer.kept import Kept
from sightline.tasks.card import ModelCard
from sightline.util.errors import FileError
from sightline.util.text import one_line

SAMPLES = {"cat": "Cat", "coffee": "Coffee", "palace": "Palace", "rocket": "Rocket"}
MAX_UPLOAD = 32 << 20  # bytes
MAX_PIXELS = 1 << 26  # of an upload: 67 million
SHORT_SIDE = 1280  # pixels that are kept, enough for 1024 and its margin
MEMORY = 256 << 20  # of all uploads together
UNTOUCHED = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}


class UnknownError(FileError):
    """There is nothing of this name, or no longer."""


class TooLargeError(FileError):
    """An upload beyond the limits."""


@dataclass(frozen=True)
class Picture:
    """An image by its id."""

    id: str
    title: str
    image: Image.Image

    def facts(self) -> dict[str, object]:
        return {"id": self.id, "title": self.title, "width": self.image.width, "height": self.image.height}


class Pictures:
    """All images.

    Args:
        card: of the first model, whose resizing all others follow, so that panels show the same part of an image.
    """

    def __init__(self, card: ModelCard) -> None:
        self.card = card
        self.given: dict[str, Picture] = {}
        self._uploads: Kept[Picture] = Kept(MEMORY, lambda item: 3 * item.image.width * item.image.height)

    def open(self, path: str | Path) -> Picture:
        """An image file that stays.

        Raises:
            ImageError: it cannot be read.
        """
        picture = Picture("given", one_line(Path(path).name, 80), _smaller(load_image(path, str(path))))
        self.given[picture.id] = picture
        return picture

    def add(self, data: bytes, name: str = "") -> Picture:
        """An upload: the bytes of an image file.

        Raises:
            TooLargeError: too many bytes or pixels.
            ImageError: it cannot be read as an image.
        """
        if len(data) > MAX_UPLOAD:
            raise TooLargeError(f"the image has more than {MAX_UPLOAD >> 20} MB; make it smaller")
        title = one_line(name.replace("\\", "/").rpartition("/")[2], 80) or "image"
        with open_image(data, "the image", 1 << 62) as image:
            pixels = image.width * image.height
        if pixels > MAX_PIXELS:
            raise TooLargeError(f"the image has more than {MAX_PIXELS:,} pixels; make it smaller")
        id = sha256(data).hexdigest()[:20]
        return self._uploads.get(id, lambda: Picture(id, title, _smaller(load_image(data, "the image"))))

    def find(self, id: str) -> Picture:
        """The image of an id.

        Raises:
            UnknownError: there is none.
        """
        if found := self.given.get(id) or self.samples.get(id) or self._uploads.find(id):
            return found
        raise UnknownError("no such image, or no longer; choose it again")

    @cached_property
    def samples(self) -> Mapping[str, Picture]:
        folder = files("sightline.explorer") / "samples"
        return {
            id: Picture(id, title, load_image((folder / f"{id}.jpg").read_bytes(), id)) for id, title in SAMPLES.items()
        }

    def seen(self, picture: Picture, size: tuple[int, int], channels: int = 3) -> Tensor:
        """What models see of an image, (channels, height, width) from 0 to 1."""
        image = picture.image if channels == 3 else picture.image.convert("L")
        options = {key: values[:channels] for key, values in UNTOUCHED.items()}
        pixels: Tensor = resize_transform(
            input_size=(channels, *size), interpolation=self.card.interpolation, crop_pct=self.card.crop_pct, **options
        )(image)
        return pixels.clamp(0, 1)


def as_jpeg(pixels: Tensor, quality: int = 90) -> bytes:
    """Pixels (3, height, width) from 0 to 1 as the bytes of a JPEG file."""
    target = BytesIO()
    Image.fromarray((pixels * 255).round().byte().permute(1, 2, 0).numpy()).save(target, "JPEG", quality=quality)
    return target.getvalue()


def _smaller(image: Image.Image) -> Image.Image:
    """An image with no more pixels than are needed."""
    share = SHORT_SIDE / min(image.size)
    if share >= 1:
        return image
    return image.resize((round(image.width * share), round(image.height * share)), Image.Resampling.LANCZOS)
