"""Values of a configuration against the types and limits of its fields; a wrong one is named in one line."""

import math
import operator
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from sightline.util.errors import InputError

ConfigError = InputError


def check(name: str, value: Any, hint: Any, item: Any) -> Any:
    """`value` in the type `hint` and inside the limits of its field."""
    converted = _convert(value, hint)
    if converted is _Wrong:
        shown = value if isinstance(value, str) else str(value)
        raise ConfigError(f"{name}: {shown!r} is not {_describe(hint)}{_near_choice(shown, hint)}")
    for number in converted if isinstance(converted, tuple) else (converted,):
        if isinstance(number, bool) or not isinstance(number, int | float):
            continue
        if not math.isfinite(number):
            raise ConfigError(f"{name}: {number} is not a finite number; give {_limits(item) or 'one'}")
        if not all(LIMITS[key][1](number, limit) for key, limit in _given(item)):
            raise ConfigError(f"{name}: {number} is out of range; give {_limits(item)}")
    return converted


LIMITS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "least": ("at least", operator.ge),
    "most": ("at most", operator.le),
    "above": ("more than", operator.gt),
    "below": ("less than", operator.lt),
}


def _given(item: Any) -> list[tuple[str, float]]:
    """The limits that a field has."""
    return [(key, item.metadata[key]) for key in LIMITS if item.metadata[key] is not None]


def _limits(item: Any) -> str:
    return " and ".join(f"{LIMITS[key][0]} {limit:,}" for key, limit in _given(item))


class _Wrong:
    """What `_convert` gives for a value of another type."""


def _convert(value: Any, hint: Any) -> Any:
    """`value` as `hint` says, or `_Wrong`; texts of numbers count as numbers, since YAML reads 1e-3 as text."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        found = (_convert(value, arg) for arg in sorted(args, key=lambda arg: arg is str))
        return next((v for v in found if v is not _Wrong), _Wrong)
    if origin is Literal:
        if value is False and "no" in args:  # YAML's no
            return "no"
        return value if isinstance(value, str) and value in args else _Wrong
    if origin is tuple:
        return _convert_tuple(value, args)
    if hint is NoneType:
        return None if value is None else _Wrong
    if origin is not None:  # Mapping
        return dict(value) if isinstance(value, Mapping) and all(isinstance(k, str) for k in value) else _Wrong
    return _convert_scalar(value, hint)


def _convert_tuple(value: Any, args: tuple[Any, ...]) -> Any:
    if not isinstance(value, list | tuple):
        return _Wrong
    hints = [args[0]] * len(value) if args[-1] is Ellipsis else list(args)
    converted = tuple(_convert(v, h) for v, h in zip(value, hints, strict=False))
    return converted if len(value) == len(hints) and _Wrong not in converted else _Wrong


def _convert_scalar(value: Any, hint: type) -> Any:
    if hint is bool or isinstance(value, bool):
        return value if isinstance(value, bool) and hint is bool else _Wrong
    if hint is str:
        return value if isinstance(value, str) else str(value) if isinstance(value, int | float) else _Wrong
    if hint is float and isinstance(value, int | float | str):
        try:
            return float(value)
        except (ValueError, OverflowError):
            return _Wrong
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, hint) else _Wrong


def _describe(hint: Any) -> str:
    """A type in words."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(_describe(arg) for arg in args)
    if origin is Literal:
        return f"one of {', '.join(args)}"
    if origin is tuple:
        if args[-1] is Ellipsis:
            return "a list such as [a, b]"
        return f"a list of {len(args)} such as [{', '.join('ab'[: len(args)])}]"
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "text", NoneType: "null"}
    return words.get(hint, "a mapping such as {key: value}")


def _near_choice(value: str, hint: Any) -> str:
    choices = [c for h in (hint, *get_args(hint)) if get_origin(h) is Literal for c in get_args(h)]
    close = get_close_matches(value, choices, 1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""
