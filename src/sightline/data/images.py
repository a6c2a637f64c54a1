"""Open and decode image files to what models take: upright, 8-bit, opaque RGB.

Images come from anywhere: only regular files of the formats below are opened, and none that has, or is resized to, more
than MAX_PIXELS.
"""

import io
import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from glob import glob, has_magic
from math import ceil
from pathlib import Path
from typing import IO, Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from sightline.util.errors import FileError, InputError
from sightline.util.files import open_regular, reason

EXTENSIONS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")  # of Pillow; others run programs, such as Ghostscript
MAX_PIXELS = 1 << 27  # 134 million; phones take 108
MAX_RESIZED = 1 << 24  # pixels of a resized image, most of which the center crop discards
MODES = {1: "L", 3: "RGB"}
Source = str | Path | bytes | IO[bytes]


class ImageError(FileError):
    """An image that cannot be read; the message is one line that begins with its name."""


@contextmanager
def open_image(source: Source, name: str | None = None) -> Iterator[Image.Image]:
    """Open an image; its pixels are decoded on first use. Every image file is opened here.

    Args:
        source: a path, the bytes of a file, or an open file.
        name: what to call the image in an error; by default its path.

    Raises:
        ImageError: there is no such file, it is no regular file, has another format than FORMATS or more pixels than
            MAX_PIXELS; or the body of the `with` statement cannot decode it.
    """
    title = name or (str(source) if isinstance(source, str | Path) else str(getattr(source, "name", "image")))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about odd metadata, and large images below the limit
            with _opened(source) as file, Image.open(file, formats=FORMATS) as image:
                check_pixels(image.height, image.width, title)
                yield image
    except (FileNotFoundError, IsADirectoryError) as error:
        raise ImageError(f"{title}: there is no such image file") from error
    except PermissionError as error:
        raise ImageError(f"{title}: cannot be read (Permission denied)") from error
    except ImageError:
        raise
    except Exception as error:  # decoders raise all sorts of errors on damaged files
        known = f"not an image, or none of {', '.join(FORMATS)}"
        why = known if isinstance(error, UnidentifiedImageError) else reason(error)
        raise ImageError(f"{title}: cannot be read as an image ({why})") from error


def _opened(source: Source) -> IO[bytes]:
    if isinstance(source, bytes):
        return io.BytesIO(source)
    return open_regular(source) if isinstance(source, str | Path) else source


def check_pixels(height: int, width: int, name: str = "image") -> None:
    """Reject a size that takes too much memory, of a file or of what it is resized to.

    Raises:
        ImageError: more than MAX_PIXELS.
    """
    if height * width > MAX_PIXELS:
        raise ImageError(f"{name}: {height}x{width} is more than {MAX_PIXELS:,} pixels; make it smaller")


def load_image(source: Source, name: str | None = None, channels: int = 3) -> Image.Image:
    """Read and decode an image.

    EXIF orientation is applied, 16-bit grayscale is scaled to eight bits, transparent pixels become white, and
    every color space (palette, CMYK, gray) becomes RGB. An animation gives its first frame.

    Args:
        source: a path, the bytes of a file, or an open file.
        name: what to call the image in an error; by default its path.
        channels: 3 for RGB, 1 for gray.

    Raises:
        ImageError: as `open_image`, or it is truncated or unreadable.
    """
    with open_image(source, name) as image:
        if channels not in MODES:
            raise ValueError(f"images are read with 1 or 3 channels, not {channels}")
        image.load()
        ImageOps.exif_transpose(image, in_place=True)
        return _flatten(image).convert(MODES[channels])


def resize_transform(**options: Any) -> Any:
    """timm's resize, center crop and normalization of evaluation, for images of any shape.

    The ends of an image much longer than wide, which the center crop discards, are cut off before it is resized:
    30000 x 1 pixels would take gigabytes on the way to 224 x 224.

    Args:
        options: of `timm.data.create_transform`.

    Returns:
        torchvision's `Compose`: PIL image -> tensor.
    """
    from timm.data import create_transform
    from torchvision.transforms import Compose

    usual = {"interpolation": "bicubic"} if options.get("interpolation") == "random" else {}  # that is for training
    made = create_transform(**{**options, **usual}, is_training=False)
    sides = [side / options.get("crop_pct", 1.0) for side in options["input_size"][1:]]
    return Compose([partial(_trim, height=sides[0], width=sides[1]), *made.transforms])


def _trim(image: Image.Image, height: float, width: float) -> Image.Image:
    """The middle of an image that would take too much memory once it covers `height` x `width`."""
    scale = max(height / image.height, width / image.width)
    if image.height * image.width * scale**2 > MAX_RESIZED:
        kept = [min(image.width, 2 * ceil(width / scale)), min(image.height, 2 * ceil(height / scale))]
        left, top = ((side - keep) // 2 for side, keep in zip(image.size, kept, strict=True))
        image = image.crop((left, top, left + kept[0], top + kept[1]))
        check_pixels(round(image.height * scale), round(image.width * scale))
    return image


def _flatten(image: Image.Image) -> Image.Image:
    """Eight bits per channel, and white behind transparent pixels."""
    if image.mode.startswith("I"):
        image = _from_16_bits(image)
    elif image.mode == "F":
        raise ValueError("floating-point pixels have no scale; save it with 8 or 16 bits")
    if image.has_transparency_data:
        colours = image if image.mode == "RGBA" else image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), colours)
    return image


def _from_16_bits(image: Image.Image) -> Image.Image:
    values = np.asarray(image)
    if values.min() < 0 or values.max() > 65535:
        raise ValueError("pixels of 32 bits; save it with 8 or 16")
    return Image.fromarray(((values.astype(np.uint32) + 128) // 257).astype(np.uint8))


def find_images(given: Iterable[str]) -> list[Path]:
    """The image files that texts name, each once: files, folders with what is in them, and patterns.

    Raises:
        InputError: a text names no file.
    """
    paths: dict[Path, None] = {}
    for text in given:
        path = Path(text)  # a link to nowhere counts as an image, which is then reported like other unreadable ones
        if not text.strip():
            raise InputError("an image path is empty; give files, folders or quoted patterns")
        if path.is_dir():
            inside = sorted(item for item in path.rglob("*") if item.suffix.lower() in EXTENSIONS and not item.is_dir())
            if not inside:
                raise InputError(f"{text}: no images in this folder ({', '.join(EXTENSIONS)})")
        elif has_magic(text) and not os.path.lexists(text):
            inside = sorted(Path(item) for item in glob(text, recursive=True) if not Path(item).is_dir())
            if not inside:
                raise InputError(f"{text}: no file matches this pattern")
        elif not os.path.lexists(text):
            raise InputError(f"{text}: there is no such file; give images, folders or quoted patterns")
        else:
            inside = [path]
        paths.update(dict.fromkeys(inside))
    return list(paths)
