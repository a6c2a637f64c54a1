"""Open and decode image files to what models take: upright, 8-bit, opaque RGB.

Images come from anywhere: only regular files of the formats below are opened, and none that has more than MAX_PIXELS or
takes more than MAX_BYTES to decode. What has more than MAX_LOADED pixels is decoded to half the height and width.
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
from PIL import ExifTags, Image, UnidentifiedImageError

from sightline.data.image_memory import decoding_bytes, stored
from sightline.util.errors import FileError, InputError
from sightline.util.files import open_regular, reason

EXTENSIONS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")  # of Pillow; others run programs, such as Ghostscript
MAX_PIXELS = 1 << 27  # of a file: 134 million; phones take 108
MAX_LOADED = 1 << 25  # of an image in memory: 34 million
MAX_BYTES = 600_000_000  # to decode an image, at most
MAX_RESIZED = 1 << 24  # pixels of a resized image, most of which the center crop discards
TILE = 512  # pixels; side of the parts that a large image is converted in
MODES = {1: "L", 3: "RGB"}
ORIGINAL = "original_size"  # key of `Image.info`: (width, height) of an image that was made smaller to be loaded
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}  # by EXIF orientation
SIDEWAYS = (5, 6, 7, 8)
Source = str | Path | bytes | IO[bytes]


class ImageError(FileError):
    """An image that cannot be read; the message is one line that begins with its name."""


@contextmanager
def open_image(source: Source, name: str | None = None, most: int = MAX_LOADED) -> Iterator[Image.Image]:
    """Open an image; its pixels are decoded on first use. Every image file is opened here.

    Args:
        source: a path, the bytes of a file, or an open file.
        name: what to call the image in an error; by default its path.
        most: pixels that it may have.

    Raises:
        ImageError: there is no such file, it is no regular file, has another format than FORMATS or too many pixels; or
            the body of the `with` statement cannot decode it.
    """
    title = name or (str(source) if isinstance(source, str | Path) else str(getattr(source, "name", "image")))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about odd metadata, and large images below the limit
            with _opened(source) as file, Image.open(file, formats=FORMATS) as image:
                check_pixels(image.height, image.width, title, most)
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


def check_pixels(height: int, width: int, name: str = "image", most: int = MAX_LOADED) -> None:
    """Reject a size that takes too much memory, of a file or of what it is resized to.

    Raises:
        ImageError: more than `most` pixels.
    """
    if height * width > most:
        raise ImageError(f"{name}: {height}x{width} is more than {most:,} pixels; make it smaller")


def load_image(source: Source, name: str | None = None, channels: int = 3, most: int | None = None) -> Image.Image:
    """Read and decode an image.

    EXIF orientation is applied, 16-bit grayscale is scaled to eight bits, transparent pixels become white, and
    every color space (palette, CMYK, gray) becomes RGB. An animation gives its first frame. More than MAX_LOADED
    pixels are averaged two by two, and `info[ORIGINAL]` says how many there were.

    Args:
        source: a path, the bytes of a file, or an open file.
        name: what to call the image in an error; by default its path.
        channels: 3 for RGB, 1 for gray.
        most: pixels that it may have; MAX_LOADED for those that must keep their size, by default MAX_PIXELS.

    Raises:
        ImageError: as `open_image`, or it is truncated or unreadable, or would take more than MAX_BYTES.
    """
    loaded, orientation = _load(source, name, channels, most or MAX_PIXELS)
    return loaded.transpose(UPRIGHT[orientation]) if orientation in UPRIGHT else loaded


def _load(source: Source, name: str | None, channels: int, most: int) -> tuple[Image.Image, object]:
    """The pixels as they are stored, and their EXIF orientation. What was decoded is freed before they are turned."""
    with open_image(source, name, most) as image:
        if channels not in MODES:
            raise ValueError(f"images are read with 1 or 3 channels, not {channels}")
        mode = MODES[channels]
        size, factor = image.size, ceil((image.width * image.height / MAX_LOADED) ** 0.5)
        if factor > 1:
            image.draft(None, (size[0] // factor, size[1] // factor))  # JPEG decodes to a smaller size by itself
        step = factor if image.size == size else 1
        _check_memory(image, size, step, mode)
        image.load()
        loaded, orientation = _convert(image, mode, step), image.getexif().get(ExifTags.Base.Orientation)
        if factor > 1:
            loaded.info[ORIGINAL] = size[::-1] if orientation in SIDEWAYS else size
        return loaded, orientation


def _check_memory(image: Image.Image, size: tuple[int, int], step: int, mode: str) -> None:
    """Reject a file that takes too much memory with what becomes of it."""
    made = stored(mode) * ceil(image.width / step) * ceil(image.height / step)
    if (needed := decoding_bytes(image, size[0] * size[1]) + made) > MAX_BYTES:
        raise ValueError(
            f"{size[1]}x{size[0]} pixels of this kind take {needed / 1e6:,.0f} MB, more than {MAX_BYTES / 1e6:.0f}; "
            f"make it smaller or save it as a plain JPEG"
        )


def _convert(image: Image.Image, mode: str, step: int) -> Image.Image:
    """Opaque pixels in `mode`, averages of `step` x `step`, made in tiles: all at once would take several copies."""
    width, height = image.size
    if step == 1 and width * height <= TILE**2:
        return _flatten(image).convert(mode)
    made = Image.new(mode, (ceil(width / step), ceil(height / step)))
    side = TILE * step
    for top in range(0, height, side):
        for left in range(0, width, side):
            tile = image.crop((left, top, min(left + side, width), min(top + side, height)))
            made.paste(_flatten(tile).convert(mode).reduce(step), (left // step, top // step))
    return made


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
