"""What users type: the nearest known name, image sizes such as 224 and 384x640, arguments of models."""

import json
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Any

from sightline.util.errors import InputError

MAX_SIDE = 65536  # pixels; anything larger is a typo


def nearest(name: str, names: Iterable[str], otherwise: str | None = None, cutoff: float = 0.5) -> str:
    """The remedy for a wrong name, for the end of an error message.

    >>> nearest("inlin", ["inline", "soft"])
    "did you mean 'inline'?"
    >>> nearest("xyz", ["inline", "soft"])
    'expected one of inline, soft'
    """
    names = list(names)
    if found := get_close_matches(name[:200].strip("*?"), names, 1, cutoff=cutoff):
        return f"did you mean {found[0]!r}?"
    return f"expected one of {', '.join(names)}" if otherwise is None else otherwise


def parse_size(text: str) -> tuple[int, int]:
    """Read an image size, height first: `224` -> (224, 224), `384x640` -> (384, 640).

    Raises:
        InputError: not a size, or a side above 65,536 pixels.
    """
    match = re.fullmatch(r"(\d{1,6})(?:x(\d{1,6}))?", text.strip().lower())
    height, width = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not (1 <= height <= MAX_SIDE and 1 <= width <= MAX_SIDE):
        raise InputError(
            f"img_size: expected pixels from 1 to {MAX_SIDE}, e.g. 224, or 384x640 (height x width); got {text!r}"
        )
    return height, width


def parse_img_size(text: str) -> int | tuple[int, int]:
    """Read the argument `img_size` of a model: `224` -> 224, `384x640` -> (384, 640)."""
    height, width = parse_size(text)
    return height if height == width else (height, width)


def format_size(size: Sequence[int]) -> str:
    """Write a size: (384, 640) -> `384x640`."""
    return "x".join(map(str, size))


def format_rate(rate: float, unit: str) -> str:
    """How fast it goes: of less than one per second, how long one takes.

    >>> format_rate(1234.5, "images"), format_rate(3.21, "images"), format_rate(0.4, "images")
    ('1,234 images/s', '3.2 images/s', '2.5 s per image')
    """
    if rate <= 0:
        return f"- {unit}/s"
    if rate < 1:
        return f"{1 / rate:,.1f} s per {unit.removesuffix('s')}"
    return f"{rate:,.{0 if rate >= 10 else 1}f} {unit}/s"


def rate_cell(rate: float) -> str:
    """The same for a column of numbers: two digits of a rate below ten, none after the point above."""
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"


def parse_model_args(texts: Iterable[str]) -> dict[str, Any]:
    """Read arguments of a model: key=value pairs with commas between them, or JSON objects.

    Raises:
        InputError: neither of the two.

    Example:
        >>> parse_model_args(["depths=1,3,20,4,attention=soft(ratio=2)", '{"num_classes": 10}'])
        {'depths': [1, 3, 20, 4], 'attention': 'soft(ratio=2)', 'num_classes': 10}
    """
    args: dict[str, Any] = {}
    for text in (part for given in texts for part in _split_pairs(given)):
        key, equals, value = text.partition("=")
        if equals and key.strip().isidentifier():
            args[key.strip()] = _parse_value(value.strip())
        elif isinstance(loaded := _parse_value(text), dict):
            args.update(loaded)
        else:
            raise InputError(f"model_args: {text!r}; write key=value, such as depths=1,3,20,4, or a JSON object")
    return args


def _split_pairs(text: str) -> list[str]:
    """`a=1,2,b=x(c=3,d=4)` -> `a=1,2` and `b=x(c=3,d=4)`."""
    return [text] if text.lstrip().startswith("{") else re.split(r",(?=\s*[A-Za-z_]\w*=)(?![^(]*\))", text)


def _parse_value(text: str) -> object:
    """A JSON value, a list of JSON values with commas between them, or else the text."""
    for form in (text, f"[{text}]"):
        with suppress(ValueError, RecursionError):
            return json.loads(form)
    return text
