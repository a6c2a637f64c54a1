"""Decode image files of any format to what models take: upright, 8-bit, opaque RGB."""

import io
import warnings
from collections.abc import Iterable
from glob import glob, has_magic
from pathlib import Path
from typing import IO

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from sightline.util.errors import FileError, InputError
from sightline.util.files import reason

EXTENSIONS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
MODES = {1: "L", 3: "RGB"}
Source = str | Path | bytes | IO[bytes]


class ImageError(FileError):
    """An image that cannot be read; the message is one line that begins with its name."""


def load_image(source: Source, name: str | None = None, channels: int = 3) -> Image.Image:
    """Read and decode an image.

    EXIF orientation is applied, 16-bit grayscale is scaled to eight bits, transparent pixels become white, and
    every color space (palette, CMYK, gray) becomes RGB. An animation gives its first frame.

    Args:
        source: a path, the bytes of a file, or an open file.
        name: what to call the image in an error; by default its path.
        channels: 3 for RGB, 1 for gray.

    Raises:
        ImageError: there is no such file, or it is truncated, unreadable or too large to decode.
    """
    title = name or (str(source) if isinstance(source, str | Path) else str(getattr(source, "name", "image")))
    if channels not in MODES:
        raise ImageError(f"{title}: images are read with 1 or 3 channels, not {channels}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about odd metadata, and large images below the limit
            with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
                image.load()
                return _flatten(ImageOps.exif_transpose(image)).convert(MODES[channels])
    except (FileNotFoundError, IsADirectoryError) as error:
        raise ImageError(f"{title}: there is no such image file") from error
    except PermissionError as error:
        raise ImageError(f"{title}: cannot be read (Permission denied)") from error
    except (KeyboardInterrupt, MemoryError):
        raise
    except Exception as error:  # decoders raise all sorts of errors on damaged files
        why = "not an image, or an unknown format" if isinstance(error, UnidentifiedImageError) else reason(error)
        raise ImageError(f"{title}: cannot be read as an image ({why})") from error


def _flatten(image: Image.Image) -> Image.Image:
    """Eight bits per channel, and white behind transparent pixels."""
    if image.mode.startswith("I"):
        image = _from_16_bits(image)
    elif image.mode == "F":
        raise ValueError("floating-point pixels have no scale; save it with 8 or 16 bits")
    if image.has_transparency_data:
        colours = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), colours)
    return image


def _from_16_bits(image: Image.Image) -> Image.Image:
    values = np.asarray(image).astype(np.int64)
    if values.min() < 0 or values.max() > 65535:
        raise ValueError("pixels of 32 bits; save it with 8 or 16")
    return Image.fromarray(((values + 128) // 257).astype(np.uint8))


def find_images(given: Iterable[str]) -> list[Path]:
    """The image files that texts name, each once: files, folders with what is in them, and patterns.

    Raises:
        InputError: a text names no file.
    """
    paths: dict[Path, None] = {}
    for text in given:
        path = Path(text)
        if not text.strip():
            raise InputError("an image path is empty; give files, folders or quoted patterns")
        if path.is_dir():
            inside = sorted(item for item in path.rglob("*") if item.suffix.lower() in EXTENSIONS and item.is_file())
            if not inside:
                raise InputError(f"{text}: no images in this folder ({', '.join(EXTENSIONS)})")
        elif has_magic(text) and not path.exists():
            inside = sorted(Path(item) for item in glob(text, recursive=True) if Path(item).is_file())
            if not inside:
                raise InputError(f"{text}: no file matches this pattern")
        elif not path.exists():
            raise InputError(f"{text}: there is no such file; give images, folders or quoted patterns")
        else:
            inside = [path]
        paths.update(dict.fromkeys(inside))
    return list(paths)
