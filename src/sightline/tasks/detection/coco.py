"""COCO's JSON of instances, read as data and checked, and its masks: polygons, and run lengths as lists or text."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypedDict, TypeGuard

import numpy as np
from torch import Tensor

from sightline.util.errors import FileError

MOST = 2**28  # pixels of an image; larger ones are not decoded
REACH = 10**6  # pixels from a corner of the image to the furthest point of a polygon that is still drawn
UNREADABLE = (ValueError, TypeError, LookupError, RuntimeError, ArithmeticError)  # what damaged masks raise
Json: TypeAlias = dict[str, Any]  # an object of a JSON file whose fields are not checked yet


class Content(TypedDict):
    """A COCO file: `load` checks images and categories; annotations are checked when a split takes them."""

    images: list[Json]
    annotations: list[Json]
    categories: list[Json]


def load(path: Path) -> Content:
    """The JSON file, with the fields that every split needs.

    Raises:
        FileError: it cannot be read, or a field is missing or of the wrong type.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise FileError(f"{path}: cannot be read as JSON ({reason(error)})") from error
    fields = {"images": ("id", "file_name", "height", "width"), "annotations": (), "categories": ("id", "name")}
    for name, keys in fields.items():
        rows = content.get(name) if isinstance(content, dict) else None
        if not isinstance(rows, list) or not all(isinstance(row, dict) and set(keys) <= row.keys() for row in rows):
            raise FileError(f"{path}: no list {name!r} of {', '.join(keys) or 'objects'}; is it COCO instances?")
    if not content["categories"] or not content["images"]:
        raise FileError(f"{path}: no images or no categories in it")
    for name, what in (("images", "image"), ("categories", "category")):
        _check_rows(path, what, content[name])
    return {name: content[name] for name in fields}  # type: ignore[return-value]


def _check_rows(path: Path, what: str, rows: Sequence[Json]) -> None:
    """Reject images or categories with a field of the wrong type, or two with one id."""
    seen: set[int] = set()
    name = "file_name" if what == "image" else "name"
    for row in rows:
        number, sides = row["id"], [row[side] for side in ("height", "width") if what == "image"]
        if not is_whole(number):
            wrong = f"id {_short(number)}, expected an integer"
        elif number in seen:
            wrong = f"id {number}, which another {what} has too"
        elif not isinstance(row[name], str) or not row[name].strip():
            wrong = f"{name} {_short(row[name])}, expected text"
        elif not all(is_whole(side) and side > 0 for side in sides):
            wrong = f"height x width {'x'.join(map(_short, sides))}, expected pixels"
        elif math.prod(sides) > MOST:
            wrong = f"height x width {'x'.join(map(str, sides))}, more than {MOST} pixels"
        else:
            seen.add(number)
            continue
        raise FileError(f"{path}: {what} {_short(number)} has {wrong}; fix the file")


def _short(value: object) -> str:
    return repr(value)[:60]


def is_whole(value: object) -> TypeGuard[int]:
    """Whether it is an integer."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is a number that a float can hold."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def decode(segmentation: Any, height: int, width: int) -> np.ndarray:
    """Polygons, or run lengths as a list or a string, -> (height, width) of 0 and 1.

    Raises:
        ValueError: there is no mask, or it is for an image of another size; damage may raise others of UNREADABLE.
    """
    from faster_coco_eval import mask as tools

    check_mask(segmentation, height, width)
    if isinstance(segmentation, list):
        polygons = [[float(v) for v in polygon] for polygon in segmentation]
        return tools.decode(tools.merge(tools.frPyObjects(polygons, height, width)))
    listed = isinstance(segmentation["counts"], list)
    return tools.decode(tools.frPyObjects(segmentation, height, width) if listed else segmentation)


def check_mask(segmentation: Any, height: int, width: int) -> None:
    """Reject what `decode` would, without drawing polygons."""
    from faster_coco_eval import mask as tools

    if isinstance(segmentation, list):
        polygons = [[float(v) for v in polygon] for polygon in segmentation]
        if not polygons or any(len(p) < 6 or len(p) % 2 or not all(map(math.isfinite, p)) for p in polygons):
            raise ValueError("a polygon needs three points or more" if polygons else "there is none")
        if (furthest := max(abs(v) for p in polygons for v in p)) > REACH:  # drawing takes memory by the length
            raise ValueError(f"a polygon reaches to {furthest:.3g}")
        return
    if not isinstance(segmentation, dict):
        raise ValueError("neither polygons nor run lengths")
    if list(segmentation["size"]) != [height, width]:
        raise ValueError(f"it is {segmentation['size'][0]}x{segmentation['size'][1]}, the image {height}x{width}")
    counts = segmentation["counts"]
    if isinstance(counts, str | bytes):
        tools.decode(segmentation)
    elif not isinstance(counts, list) or not all(is_whole(v) and v >= 0 for v in counts):
        raise ValueError("its run lengths are neither integers nor text")
    elif sum(counts) != height * width:
        raise ValueError("its run lengths do not fill the image")


def encode(mask: Tensor) -> Json:
    """A mask (H, W) as COCO's run lengths, in text."""
    from faster_coco_eval import mask as tools

    encoded = tools.encode(np.asfortranarray(mask.numpy().astype(np.uint8)))
    counts = encoded["counts"]
    return {
        "size": [int(v) for v in encoded["size"]],
        "counts": counts.decode() if isinstance(counts, bytes) else counts,
    }


def reason(error: Exception) -> str:
    """What is wrong, in one line."""
    return " ".join(str(error).split())[:120]
