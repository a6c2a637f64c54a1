"""Configurations checked by pydantic. Dataclasses give types, defaults, limits and help; a wrong value is one line."""

from collections.abc import Mapping
from dataclasses import Field, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import pydantic
from pydantic import BeforeValidator, ConfigDict, Strict, ValidationError, create_model

from sightline.util.errors import InputError
from sightline.util.names import closest

T = TypeVar("T")
Hint = Any  # a type, or a form of typing such as `int | None`
Key = Field[Any]  # with limits and help in its metadata
RULES = ConfigDict(extra="forbid", allow_inf_nan=False, coerce_numbers_to_str=True)
LIMITS = {
    "least": ("ge", "at least"),
    "most": ("le", "at most"),
    "above": ("gt", "more than"),
    "below": ("lt", "less than"),
}
NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "text", NoneType: "null"}


def build(cls: type[T], values: Mapping[str, object]) -> T:
    """The dataclass `cls`, whose fields may be dataclasses, from nested mappings.

    Numbers may be texts, since YAML reads 1e-3 as text.

    Raises:
        InputError: names the key, what is expected and what was given.
    """
    try:
        return _fill(cls, _model(cls).model_validate(dict(values)))  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise InputError(_message(cls, values, first["loc"])) from None


def sections(cls: type) -> dict[str, type]:
    """The fields of a configuration that are dataclasses themselves."""
    return {name: hint for name, hint in get_type_hints(cls).items() if isinstance(hint, type) and is_dataclass(hint)}


def keys(cls: type) -> dict[str, Key]:
    """Every `section.key` of a configuration with its field."""
    return {f"{name}.{item.name}": item for name, section in sections(cls).items() for item in fields(section)}


def _fill(cls: type[T], checked: pydantic.BaseModel) -> T:
    values = {name: getattr(checked, name) for name in checked.model_fields_set}
    inner = sections(cls)
    return cls(**{name: _fill(inner[name], value) if name in inner else value for name, value in values.items()})


@cache
def _model(cls: type) -> type[pydantic.BaseModel]:
    """The pydantic model with the fields of a dataclass, all of them optional."""
    hints = get_type_hints(cls)
    made: dict[str, Any] = {item.name: (_checked(hints[item.name], item), None) for item in fields(cls)}
    return create_model(cls.__name__, __config__=RULES, **made)


def _checked(hint: Hint, item: Key) -> Hint:
    """A type with the limits of its field on every number in it."""
    origin, args = get_origin(hint), get_args(hint)
    if is_dataclass(hint) and isinstance(hint, type):
        return Annotated[_model(hint), BeforeValidator(lambda value: {} if value is None else value)]
    if origin in (Union, UnionType):
        return Union[tuple(_checked(arg, item) for arg in args)]  # noqa: UP007 - built at run time
    if origin is tuple:
        return tuple[tuple(arg if arg is Ellipsis else _checked(arg, item) for arg in args)]  # type: ignore[misc]
    if origin is Literal and "no" in args:  # which YAML reads as false
        return Annotated[hint, BeforeValidator(lambda value: "no" if value is False else value)]
    if hint is bool:
        return Annotated[bool, Strict()]
    if hint in (int, float):
        limits = {name: item.metadata[key] for key, (name, _) in LIMITS.items() if item.metadata[key] is not None}
        return Annotated[hint, BeforeValidator(_not_bool), pydantic.Field(**limits)]
    return hint


def _not_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("a truth value is not a number")
    return value


def _message(cls: type, values: object, loc: tuple[int | str, ...]) -> str:
    """What is wrong at `loc`: keys of the configuration, and inside a value indices and types."""
    name, given, root = "", values, cls
    for part in loc:
        inner = {item.name: item for item in fields(cls)}
        name = f"{name}.{part}".lstrip(".")
        if part not in inner:
            inside = [f"{name.rpartition('.')[0]}.{key}".lstrip(".") for key in inner]
            found = closest(name, inside, 0.6) or closest(name, keys(root), 0.4)
            remedy = f"did you mean {found!r}?" if found else f"expected one of {', '.join(inside)}"
            return f"no key {name!r} in the configuration; {remedy}"
        assert isinstance(given, Mapping)
        given, hint = given[part], get_type_hints(cls)[part]
        if not is_dataclass(hint):
            return f"{name}: expected {_expected(hint)}{_limits(inner[part])}; got {given!r}{_near_choice(given, hint)}"
        assert isinstance(hint, type)
        cls = hint
    return f"{name}: expected a section with keys such as {', '.join(list(get_type_hints(cls))[:3])}; got {given!r}"


def _limits(item: Key) -> str:
    given = [f"{title} {item.metadata[key]:,}" for key, (_, title) in LIMITS.items() if item.metadata[key] is not None]
    return f", {' and '.join(given)}" if given else ""


def _expected(hint: Hint) -> str:
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(_expected(arg) for arg in args)
    if origin is Literal:
        return f"one of {', '.join(args)}"
    if origin is tuple:
        return "a list of numbers" if args[-1] is Ellipsis else f"a list of {len(args)} numbers"
    return NAMES.get(hint, "a mapping such as {key: value}")


def _near_choice(value: object, hint: Hint) -> str:
    choices = [choice for form in (hint, *get_args(hint)) if get_origin(form) is Literal for choice in get_args(form)]
    found = closest(str(value), choices)
    return f"; did you mean {found!r}?" if found else ""
