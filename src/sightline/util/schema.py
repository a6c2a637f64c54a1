"""Typed values from what people type: numbers with limits, ranges, keys with help; pydantic checks them all.

@dataclass(frozen=True)
class Batch:
    size: Count = entry(1024, "images per update")

build(Batch, {"size": "64"})        # numbers may be texts, since YAML reads 1e-3 as text
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from sightline.util.errors import LONG, InputError, shown
from sightline.util.names import MAX_SIDE, nearest, parse_img_size, parse_model_args, parse_size

T = TypeVar("T")


def _number(value: object) -> object:
    if isinstance(value, bool):
        raise PydanticCustomError("number", "Input should be a number")
    return value


def _in_order(ends: tuple[float, float]) -> tuple[float, float]:
    low, high = ends
    if low > high:
        raise ValueError(f"[{low:g}, {high:g}] is reversed; give [{high:g}, {low:g}]")
    return ends


def _split(texts: str | Iterable[str]) -> list[str]:
    return (texts if isinstance(texts, str) else ",".join(texts)).split(",")


LARGEST, HIGHEST = 2**31 - 1, 1e12  # more of anything is a typo
MOST_WORKERS, MOST_CLASSES = 256, 1_000_000
Seed = Annotated[int, BeforeValidator(_number), Field(ge=0, le=2**63 - 1)]
Whole = Annotated[int, BeforeValidator(_number), Field(ge=-LARGEST, le=LARGEST)]
Natural = Annotated[Whole, Field(ge=0)]
Count = Annotated[Whole, Field(ge=1)]
Side = Annotated[Count, Field(le=MAX_SIDE)]  # pixels
Workers = Annotated[Natural, Field(le=MOST_WORKERS)]  # processes
Number = Annotated[float, BeforeValidator(_number), Field(ge=-HIGHEST, le=HIGHEST, allow_inf_nan=False)]
Amount = Annotated[Number, Field(ge=0)]
Positive = Annotated[Number, Field(gt=0)]
Share = Annotated[Amount, Field(le=1)]
Dropout = Annotated[Amount, Field(le=0.99)]
Classes = Annotated[Natural, Field(le=MOST_CLASSES)]  # 0 for no classifier
Range = Annotated[tuple[T, T], AfterValidator(_in_order)]
Name = Annotated[str, Field(min_length=1)]
Several = Annotated[tuple[T, ...], Field(min_length=1)]
Listed = Annotated[tuple[T, ...], BeforeValidator(_split)]  # as texts with commas
Size = Annotated[tuple[int, int], BeforeValidator(parse_size)]
ImgSize = Annotated[int | tuple[int, int], BeforeValidator(parse_img_size)]
ModelArgs = Annotated[dict[str, Any], BeforeValidator(parse_model_args)]


def check_whole(name: str, value: object, low: int, high: int = LARGEST) -> None:
    """Reject an argument of a function that is not a whole number in these limits.

    Raises:
        InputError: names the argument, the limits and the value.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InputError(f"{name}: expected a whole number from {low} to {high}; got {shown(value)}")


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Reject an argument of a function that is none of these texts.

    Raises:
        InputError: names the argument, the choices and the value.
    """
    if not isinstance(value, str) or value not in choices:
        raise InputError(f"{name}: expected one of {', '.join(choices)}; got {shown(value)}")


def check_text(name: str, value: object) -> None:
    """Reject an argument of a function that is no text, or an empty one.

    Raises:
        InputError: names the argument and the value.
    """
    if not isinstance(value, str) or not value:
        raise InputError(f"{name}: expected a text; got {shown(value)}")


def both_sides(name: str, value: object) -> tuple[int, int] | None:
    """(height, width) of an argument that is one number for both sides, or two, or None.

    Raises:
        InputError: names the argument, the limits and the value.
    """
    sides = (value, value) if isinstance(value, int) else value
    if value is None:
        return None
    if not isinstance(sides, Sequence) or len(sides) != 2 or isinstance(sides, str):
        raise InputError(f"{name}: expected pixels, or (height, width); got {shown(value)}")
    for side in sides:
        check_whole(name, side, 1, MAX_SIDE)
    return sides[0], sides[1]


def entry(default: T, help: str) -> T:
    """A key with its default and a line of help."""
    if isinstance(default, dict):
        return field(default_factory=lambda: default.copy(), metadata={"help": help})  # type: ignore[return-value]
    return field(default=default, metadata={"help": help})


def build(cls: type[T], values: Mapping[str, object], depth: int = 1, known: Iterable[str] = ()) -> T:
    """The dataclass `cls`, whose fields may be dataclasses, from nested mappings.

    Args:
        depth: of its keys; what pydantic names below that is inside of a value.
        known: the keys, to suggest one for a key that does not exist.

    Raises:
        InputError: names the key, what is expected and what was given.
    """
    try:
        return _adapter(cls).validate_python(values)  # type: ignore[arg-type]
    except ValidationError as error:
        raise InputError(explain(error, depth, known)) from None


@cache
def _adapter(cls: type[T]) -> TypeAdapter[T]:
    return TypeAdapter(cls)


def explain(error: ValidationError, depth: int = 1, known: Iterable[str] = ()) -> str:
    """The first thing that does not fit, in one line."""
    first: Any = error.errors(include_url=False)[0]
    key, context = ".".join(map(str, first["loc"][:depth])), first.get("ctx", {})
    cause = context.get("error")  # of a check of our own
    if first["type"] == "unexpected_keyword_argument":
        return unknown_key(key, known)
    if cause is not None:
        return str(cause) if isinstance(cause, InputError) else f"{key}: {cause}"
    message = "expected more values" if first["type"] == "missing" else first["msg"]
    message = message.replace("Input should be", "expected")
    near = nearest(str(first["input"])[:LONG], re.findall("'([^']*)'", context.get("expected", "")), "")
    return "; ".join(filter(None, (f"{key}: {message}", f"got {shown(first['input'])}", near)))


def unknown_key(name: str, known: Iterable[str]) -> str:
    """The message for a key that is not among the known ones."""
    known = list(known)
    inner = [key for key in known if "." in key]
    sections = ", ".join(dict.fromkeys(key.partition(".")[0] for key in inner))
    remedy = nearest(name, inner, f"expected SECTION.KEY with a section of {sections}", cutoff=0.4)
    remedy = nearest(name, known, remedy, cutoff=0.6)
    return f"no key {name!r} in the configuration; {remedy}"
