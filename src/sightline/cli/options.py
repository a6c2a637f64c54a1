"""Commands as data: a typed dataclass of options for each, from which jsonargparse makes the parser.

    @dataclass(frozen=True)
    class Options:
        name: str = positional("model to describe")
        img_size: str | None = option("size of the images")     # --img-size

Booleans are switches and tuples are options that may be repeated, or places that take several values; all others are
checked against their type.
"""

import re
from argparse import Action
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from difflib import get_close_matches
from typing import Any, NoReturn, get_origin, get_type_hints

from jsonargparse import ArgumentParser, DefaultHelpFormatter


class UsageError(ValueError):
    """Bad input; the message is one line that says what to do instead."""


def refuse_given(options: Mapping[str, Any], why: str) -> None:
    """Refuse options that would change nothing, by their names, where one has a value.

    Raises:
        UsageError: one of them was given.
    """
    if given := [name for name, value in options.items() if value]:
        raise UsageError(f"{', '.join(given)}: {why}")


@dataclass(frozen=True)
class Command:
    """A command: its options, what runs it (its exit status, None for 0), a line of help, and examples that follow."""

    options: type
    run: Callable[[Any], int | None]
    help: str
    examples: str
    usage: str | None = None  # where a list of all options would say less
    aliases: dict[str, str] = field(default_factory=dict)  # short options and what they stand for


@dataclass(frozen=True)
class Group:
    """A command that has commands of its own: `sightline NAME WHAT ...`; `noun` is what one of them is called."""

    commands: dict[str, Command]
    noun: str
    help: str
    description: str
    examples: str


def positional(help: str, *, optional: bool = False) -> Any:
    """A field that is given by its place."""
    return field(default=None if optional else MISSING, metadata={"help": help, "positional": True})


def option(help: str, *, default: Any = None, metavar: str | None = None) -> Any:
    """A field that is given as `--name VALUE`."""
    return field(default=default, metadata={"help": help, "metavar": metavar})


class _Help(DefaultHelpFormatter):
    """Help without the types and defaults that jsonargparse adds; paragraphs are filled, examples kept."""

    def _get_help_string(self, action: Action) -> str:
        return action.help or ""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        paragraphs = text.split("\n\n")
        return "\n\n".join(p if "\n  " in p else fill(p, width, indent) for p in paragraphs)


class Parser(ArgumentParser):
    """A parser that raises `UsageError` with one line instead of printing its usage."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, formatter_class=_Help, allow_abbrev=False, **kwargs)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        raise UsageError(_one_line(message)) from ex


def _one_line(message: str) -> str:
    key = re.search(r'[Pp]arser key "(?:\w+\.)?(\w+)"', message)
    value = re.search(r"(?:Given value|Got value): (.*)", message)
    if key and value:
        given = value[1].strip()
        choices = re.findall(r"'([\w-]+)'", message.partition("Literal")[2].partition("]")[0])
        kind = "a whole number" if "int" in message else "of the right kind"
        if choices:
            close = nearest(given, choices, "")
            kind = f"one of {', '.join(choices)}{close and f'; {close}'}"
        return f"--{key[1].replace('_', '-')}: {given!r} is not {kind}"
    message = " ".join(message.split()).rstrip(".")
    if "required" in message:  # jsonargparse names a place as command.name
        message = re.sub(r"\b(?:[a-z]+\.)+([a-z_]+)\b", lambda match: match[1].upper(), message)
    return message


def add_options(parser: Parser, options: type) -> None:
    """Give the parser an argument for every field of the dataclass `options`."""
    hints = get_type_hints(options)
    for item in fields(options):
        if "keys" in item.metadata:
            for key, help_text in item.metadata["keys"]():
                parser.add_argument(f"--{key}", type=str, help=help_text.replace("%", "%%"), metavar="VALUE")
            continue
        help_text, metavar = item.metadata["help"], item.metadata.get("metavar")
        if item.metadata.get("positional"):
            several = get_origin(hints[item.name]) is tuple
            nargs: Any = {"nargs": "+"} if several else {} if item.default is MISSING else {"nargs": "?"}
            parser.add_argument(item.name, type=str, help=help_text, metavar=item.name.upper(), **nargs)
            continue
        flag = f"--{item.name.replace('_', '-')}"
        if hints[item.name] is bool:
            parser.add_argument(flag, action="store_true", help=help_text)
        elif get_origin(hints[item.name]) is tuple:
            parser.add_argument(flag, action="append", help=help_text, metavar=metavar)
        else:
            parser.add_argument(flag, type=hints[item.name], default=item.default, help=help_text, metavar=metavar)


def read_options(options: type, parsed: Any) -> Any:
    """The dataclass `options` filled with what was parsed."""
    values = {item.name: _read(item, parsed) for item in fields(options)}
    return options(**{name: value for name, value in values.items() if value is not None})


def _read(item: Field[Any], parsed: Any) -> Any:
    """The value of a field; of one with keys, those keys that were given, as texts."""
    if "keys" not in item.metadata:
        return parsed[item.name]
    return {key: parsed[key] for key, _ in item.metadata["keys"]() if parsed[key] is not None}


def expand(argv: list[str], aliases: dict[str, str]) -> list[str]:
    """`argv` with the short options written out."""
    names = ((word, *word.split("=", 1)) for word in argv)
    return [word if name not in aliases else "=".join([aliases[name], *value]) for word, name, *value in names]


def check_keys(options: type, argv: list[str]) -> None:
    """Refuse `--section.key` that the configuration does not have, with the nearest one that it has."""
    for item in fields(options):
        if "keys" in item.metadata:
            own = [other.name.replace("_", "-") for other in fields(options) if other is not item]
            known = {*own, *(key for key, _ in item.metadata["keys"]()), "help", "version"}
            for word in argv:
                name = word.removeprefix("--").split("=", 1)[0]
                if word.startswith("--") and name not in known:
                    raise UsageError(item.metadata["unknown"](name, own))


def nearest(name: str, names: Iterable[str], otherwise: str) -> str:
    """The remedy for a wrong name: the one that was probably meant, or another remedy where none is near."""
    close = get_close_matches(name.strip("*?"), list(names), 1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else otherwise
