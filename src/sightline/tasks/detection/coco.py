"""COCO's JSON file of instances, read as data and checked."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MOST = 2**28  # pixels of an image; what is larger is not decoded


def load(path: Path) -> dict[str, Any]:
    """The JSON file, with the fields that every split needs.

    Raises:
        ValueError: it cannot be read, or a field is missing or of the wrong type.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: cannot be read as JSON ({' '.join(str(error).split())[:120]})") from error
    fields = {"images": ("id", "file_name", "height", "width"), "annotations": (), "categories": ("id", "name")}
    for name, keys in fields.items():
        rows = content.get(name) if isinstance(content, dict) else None
        if not isinstance(rows, list) or not all(isinstance(row, dict) and set(keys) <= row.keys() for row in rows):
            raise ValueError(
                f"{path}: no list {name!r} with {', '.join(keys) or 'entries'} in it; is it COCO instances?"
            )
    if not content["categories"] or not content["images"]:
        raise ValueError(f"{path}: no images or no categories in it")
    for name, what in (("images", "image"), ("categories", "category")):
        _check_rows(path, what, content[name])
    return content


def _check_rows(path: Path, what: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Refuse images or categories with a field of the wrong type, or two with one number."""
    seen: set[int] = set()
    for row in rows:
        number = row["id"]
        if not is_whole(number):
            raise ValueError(f"{path}: {what} {_short(number)} has no whole number as its id; mend the file")
        if number in seen:
            raise ValueError(f"{path}: two times {what} {number}; give every {what} an id of its own")
        seen.add(number)
        name = "file_name" if what == "image" else "name"
        if not isinstance(row[name], str) or not row[name].strip():
            raise ValueError(f"{path}: {what} {number} has the {name} {_short(row[name])}, not a text; mend the file")
        sides = [row[side] for side in ("height", "width") if what == "image"]
        if not all(is_whole(side) and side > 0 for side in sides):
            size = "x".join(map(_short, sides))
            raise ValueError(f"{path}: {what} {number} is of {size} pixels (height x width); mend the file")
        if math.prod(sides) > MOST:
            raise ValueError(
                f"{path}: {what} {number} of {'x'.join(map(str, sides))} pixels is larger than any that is read; "
                f"mend the file"
            )


def _short(value: Any) -> str:
    return repr(value)[:60]


def is_whole(value: Any) -> bool:
    """Whether it is an integer."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether it is a number that a float can hold."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
