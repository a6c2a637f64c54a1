"""Pictures of predictions: classes of pixels, or boxes and masks, over the image."""

import colorsys
from collections.abc import Mapping, Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from sightline.util.text import NAME, printable

ALPHA = 0.55  # of the colors over the image
GOLDEN = 0.618034  # turns of hue from one class to the next, so that neighbors differ
Colour = tuple[int, int, int]


def palette(count: int) -> list[Colour]:
    """One color per class, the same in every picture."""
    colours = []
    for i in range(count):
        value = 0.95 - 0.3 * (i // 7 % 2)
        red, green, blue = colorsys.hsv_to_rgb(i * GOLDEN % 1, 0.85 - 0.35 * (i // 14 % 2), value)
        colours.append((round(255 * red), round(255 * green), round(255 * blue)))
    return colours


def draw_classes(image: Image.Image, classes: np.ndarray, names: Sequence[str]) -> Image.Image:
    """An image with its pixels colored by class (H, W), and a legend of the classes that occur, largest first."""
    colours = palette(len(names))
    table = np.array(colours, dtype=np.float32)
    mixed = np.array(image.convert("RGB"))
    for row, kinds in zip(mixed, classes, strict=True):  # row by row: all of it in float would take gigabytes
        row[:] = (row * np.float32(1 - ALPHA) + table[kinds] * ALPHA).round()
    counts = np.bincount(classes.reshape(-1), minlength=len(names))
    present = [int(i) for i in np.argsort(-counts, kind="stable") if counts[i]]
    rows = [(colours[i], f"{printable(names[i], NAME)} {100 * counts[i] / classes.size:.1f} %") for i in present]
    return with_legend(Image.fromarray(mixed), rows)


def with_legend(picture: Image.Image, rows: Sequence[tuple[Colour, str]]) -> Image.Image:
    """A picture with a column of colors and labels to its right; rows that do not fit are counted."""
    size = max(11, min(18, picture.height // 24))
    font = ImageFont.load_default(size)
    line = round(size * 1.5)
    room = max(1, (picture.height - line // 2) // line)
    if len(rows) > room:
        rows = [*rows[: room - 1], ((255, 255, 255), f"and {len(rows) - room + 1} more")]
    width = round(max(font.getlength(text) for _, text in rows) + 2.6 * line)
    canvas = Image.new("RGB", (picture.width + width, picture.height), "white")
    canvas.paste(picture, (0, 0))
    draw = ImageDraw.Draw(canvas)
    left = picture.width + line // 2
    for i, (colour, text) in enumerate(rows):
        top = line // 2 + i * line
        draw.rectangle((left, top, left + size, top + size), fill=colour)
        draw.text((left + size + 8, top + size / 2), text, fill="black", font=font, anchor="lm")
    return canvas


def draw_objects(image: Image.Image, objects: Mapping[str, Tensor], names: Sequence[str]) -> Image.Image:
    """An image with masks, boxes, names and scores, the most certain on top; labels count from 1."""
    pixels = np.array(image.convert("RGB"))
    labels, scores = objects["labels"].tolist(), objects["scores"].tolist()
    colours = [palette(len(names))[label - 1] for label in labels]
    order = sorted(range(len(scores)), key=lambda i: scores[i])
    for i in order if "masks" in objects else ():
        mask = objects["masks"][i].numpy()
        pixels[mask] = (pixels[mask] * (1 - ALPHA) + np.array(colours[i]) * ALPHA).round()
    picture = Image.fromarray(pixels)
    draw = ImageDraw.Draw(picture)
    size = max(11, min(18, picture.height // 30))
    font = ImageFont.load_default(size)
    for i in order:
        left, top, right, bottom = objects["boxes"][i].tolist()
        draw.rectangle((left, top, right, bottom), outline=colours[i], width=max(2, size // 6))
        text = f"{printable(names[labels[i] - 1], NAME)} {scores[i]:.2f}"
        corner = (left + 2, top - 2) if top > size * 1.4 else (left + 2, top + size * 1.3)
        box = draw.textbbox(corner, text, font=font, anchor="lb")
        draw.rectangle((box[0] - 2, box[1] - 1, box[2] + 2, box[3] + 1), fill=colours[i])
        draw.text(corner, text, fill="black" if sum(colours[i]) > 380 else "white", font=font, anchor="lb")
    return picture
