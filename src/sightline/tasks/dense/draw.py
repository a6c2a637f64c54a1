"""Pictures of what a model found: classes of pixels, or boxes and masks, over the image."""

import colorsys
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

STRENGTH = 0.55  # of the colours over the image
GOLDEN = 0.618034  # turns of hue from a class to the next: neighbours differ


def palette(count: int) -> list[tuple[int, int, int]]:
    """A colour for every class, the same in every picture."""
    colours = []
    for i in range(count):
        value = 0.95 - 0.3 * (i // 7 % 2)
        red, green, blue = colorsys.hsv_to_rgb(i * GOLDEN % 1, 0.85 - 0.35 * (i // 14 % 2), value)
        colours.append((round(255 * red), round(255 * green), round(255 * blue)))
    return colours


def overlay(image: Image.Image, classes: np.ndarray, names: Sequence[str]) -> Image.Image:
    """An image with its pixels coloured by class (H, W), and a legend of the classes that occur, largest first."""
    colours = palette(len(names))
    table = np.array(colours, dtype=np.float32)
    mixed = np.asarray(image.convert("RGB"), dtype=np.float32) * (1 - STRENGTH) + table[classes] * STRENGTH
    counts = np.bincount(classes.reshape(-1), minlength=len(names))
    present = [int(i) for i in np.argsort(-counts, kind="stable") if counts[i]]
    rows = [(colours[i], f"{names[i]} {100 * counts[i] / classes.size:.1f} %") for i in present]
    return with_legend(Image.fromarray(mixed.round().astype(np.uint8)), rows)


def with_legend(picture: Image.Image, rows: Sequence[tuple[tuple[int, int, int], str]]) -> Image.Image:
    """A picture with a column of colours and words at its right; rows that do not fit are counted."""
    size = max(11, min(18, picture.height // 24))
    font: Any = ImageFont.load_default(size)
    line = round(size * 1.5)
    room = max(1, (picture.height - line // 2) // line)
    texts = [text for _, text in rows]
    if len(rows) > room:
        texts = [*texts[: room - 1], f"and {len(rows) - room + 1} more"]
    width = round(max(font.getlength(text) for text in texts) + 2.6 * line) if texts else 0
    canvas = Image.new("RGB", (picture.width + width, picture.height), "white")
    canvas.paste(picture, (0, 0))
    draw = ImageDraw.Draw(canvas)
    for i, text in enumerate(texts):
        top, left = line // 2 + i * line, picture.width + line // 2
        if not text.startswith("and ") or i + 1 < len(texts) or len(rows) <= room:
            draw.rectangle((left, top, left + size, top + size), fill=rows[i][0])
        draw.text((left + size + 8, top + size / 2), text, fill="black", font=font, anchor="lm")
    return canvas


def objects(image: Image.Image, found: dict[str, Any], names: Sequence[str]) -> Image.Image:
    """An image with masks, boxes, names and scores of what was found, the surest on top."""
    colours = palette(len(names))
    pixels = np.asarray(image.convert("RGB"), dtype=np.float32).copy()
    order = np.argsort(found["scores"].numpy(), kind="stable")
    for i in order if "masks" in found else ():
        mask = found["masks"][i].numpy().astype(bool)
        pixels[mask] = pixels[mask] * (1 - STRENGTH) + np.array(colours[found["labels"][i] - 1]) * STRENGTH
    picture = Image.fromarray(pixels.round().astype(np.uint8))
    draw = ImageDraw.Draw(picture)
    size = max(11, min(18, picture.height // 30))
    font: Any = ImageFont.load_default(size)
    for i in order:
        colour = colours[found["labels"][i] - 1]
        left, top, right, bottom = found["boxes"][i].tolist()
        draw.rectangle((left, top, right, bottom), outline=colour, width=max(2, size // 6))
        text = f"{names[found['labels'][i] - 1]} {found['scores'][i]:.2f}"
        place = (left + 2, top - 2) if top > size * 1.4 else (left + 2, top + size * 1.3)
        box = draw.textbbox(place, text, font=font, anchor="lb")
        draw.rectangle((box[0] - 2, box[1] - 1, box[2] + 2, box[3] + 1), fill=colour)
        draw.text(place, text, fill="black" if sum(colour) > 380 else "white", font=font, anchor="lb")
    return picture
