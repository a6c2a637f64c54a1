"""How much memory an image takes while it is decoded, known from its header.

Pillow holds a pixel of color in four bytes. Some decoders hold the whole image once more, or several times: libwebp its
own canvas, libjpeg the coefficients of a JPEG with more than one scan, libtiff a strip, and those that are written in
Python their bytes.
"""

from typing import Any

from PIL import Image

STORED = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16L": 2, "I;16B": 2, "I;16N": 2}  # bytes per pixel; 4 of other modes
IN_PYTHON = ("bmp_rle", "ppm", "ppm_plain")
ROWS_PER_STRIP, TILE_ROWS, BITS = 278, 323, 258  # tags of TIFF


def stored(mode: str) -> int:
    """Bytes of a pixel."""
    return STORED.get(mode, 4)


def decoding_bytes(image: Image.Image, pixels: int) -> int:
    """Bytes at most, besides those of the file.

    Args:
        image: opened, not decoded; at a smaller scale if it was drafted so.
        pixels: in the file.
    """
    width, height = image.size
    own = width * height * stored(image.mode) + 8 * height + 16 * width  # and a pointer per row, two rows of a decoder
    return own + _more(image, pixels)


def _more(image: Any, pixels: int) -> int:
    """What the decoder takes for itself."""
    if image.format == "WEBP":
        return 12 * pixels
    if image.format in ("JPEG", "MPO"):
        return 0 if _one_scan(image) else _coefficients(image, pixels)
    if any(part[0] == "libtiff" for part in image.tile):
        tags = image.tag_v2
        rows = min(tags.get(TILE_ROWS) or tags.get(ROWS_PER_STRIP) or image.height, image.height)
        return int(rows * image.width * max(4, sum(tags.get(BITS, (8,))) // 8))
    return 8 * pixels if any(part[0] in IN_PYTHON for part in image.tile) else 0


def _one_scan(image: Any) -> bool:
    """Whether all components of a JPEG come together, so that it can be decoded row by row."""
    head = bytes([0, 6 + 2 * image.layers, image.layers])  # of the scan, which Pillow has just read
    if "progressive" in image.info or image.format != "JPEG" or image.fp.tell() < head[1]:
        return False
    image.fp.seek(-head[1], 1)
    return bool(image.fp.read(len(head)) == head)


def _coefficients(image: Any, pixels: int) -> int:
    tall, wide = (max(layer[side] for layer in image.layer) for side in (1, 2))
    return 2 * pixels * sum(layer[1] * layer[2] for layer in image.layer) // (tall * wide)
