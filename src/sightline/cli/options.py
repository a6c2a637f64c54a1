"""Commands as data: each has a typed dataclass of options, from which argparse makes the parser.

    @dataclass(frozen=True)
    class Options:
        name: str = positional("model to describe")
        img_size: str | None = option("size of the images")     # --img-size

A boolean is a switch, a tuple an option that can be repeated (or a positional that takes several values). Texts stay
as typed; numbers and choices are converted, and a value that cannot be is an `InputError` naming option and value.
"""

from argparse import ArgumentError, ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from inspect import getdoc
from shutil import get_terminal_size
from textwrap import fill
from typing import Any, ClassVar, Generic, Literal, NoReturn, Protocol, TypeVar, get_args, get_origin, get_type_hints

from sightline.util.errors import InputError
from sightline.util.names import closest, nearest


class Fields(Protocol):
    """Any dataclass."""

    __dataclass_fields__: "ClassVar[dict[str, Field[Any]]]"


T = TypeVar("T", bound=Fields)
V = TypeVar("V")


def reject_given(options: Mapping[str, object], why: str) -> None:
    """Reject options that have no effect here, if one was given.

    Raises:
        InputError: names those that were given.
    """
    if given := [name for name, value in options.items() if value]:
        raise InputError(f"{', '.join(given)}: {why}")


@dataclass(frozen=True)
class Command(Generic[T]):
    """A command: its options, the function that runs it and returns the exit status (None is 0), help and examples."""

    options: type[T]
    run: Callable[[T], int | None]
    help: str
    examples: str
    usage: str | None = None  # if a list of all options would be too long
    aliases: dict[str, str] = field(default_factory=dict)  # short options by what they replace


@dataclass(frozen=True)
class Group:
    """A command with subcommands, `sightline NAME WHAT ...`; `noun` names one of them in messages."""

    commands: "dict[str, Command[Any]]"
    noun: str
    help: str
    description: str
    examples: str


def positional(help: str, *, optional: bool = False) -> Any:
    """Declare an argument given by position."""
    return field(default=None if optional else MISSING, metadata={"help": help, "positional": True})


def option(help: str, *, default: V = None, metavar: str | None = None) -> V:  # type: ignore[assignment]
    """Declare an option, `--name VALUE`."""
    return field(default=default, metadata={"help": help, "metavar": metavar})


class Parser(ArgumentParser):
    """An argparse parser that raises `InputError` instead of printing its usage and exiting."""

    def __init__(self, prog: str, description: str, epilog: str, usage: str | None = None) -> None:
        width = get_terminal_size().columns - 2
        description = "\n\n".join(fill(text, width) for text in description.split("\n\n"))
        super().__init__(
            prog=prog, usage=usage, description=description, epilog=epilog, allow_abbrev=False, exit_on_error=False,
            formatter_class=RawDescriptionHelpFormatter,
        )  # fmt: skip

    def error(self, message: str) -> NoReturn:
        raise InputError(message)


def parse(command: Command[T], prog: str, argv: Sequence[str]) -> T:
    """Read the options of a command.

    Raises:
        InputError: an unknown option, a missing argument or a bad value.
        SystemExit: after `--help`.
    """
    usage = None if command.usage is None else command.usage.replace("%", "%%")
    parser = Parser(prog, getdoc(command.options) or "", f"examples:\n{command.examples}", usage)
    hints = get_type_hints(command.options)
    for item in fields(command.options):
        _add(parser, item, hints[item.name])
    try:
        parsed, extra = parser.parse_known_args(_expand(argv, command.aliases))
        if extra:
            raise InputError(_unknown(command, extra))
    except ArgumentError as error:
        raise InputError(f"{error.argument_name}: {error.message}; see `{prog} --help`") from error
    except InputError as error:
        raise InputError(f"{error}; see `{prog} --help`") from error
    given = vars(parsed)
    values: dict[str, object] = {}
    for item in fields(command.options):
        if "keys" in item.metadata:
            values[item.name] = {key: given[key] for key, _ in item.metadata["keys"]() if given[key] is not None}
        elif given[item.name] is not None:
            value = given[item.name]
            values[item.name] = tuple(value) if isinstance(value, list) else value
    return command.options(**values)


def _add(parser: Parser, item: "Field[object]", kind: object) -> None:
    """Add the argument of one field to the parser, or one for each key of a configuration."""
    if "keys" in item.metadata:
        for key, help in item.metadata["keys"]():
            parser.add_argument(f"--{key}", dest=key, help=_percent(help), metavar="VALUE")
        return
    help, several = _percent(item.metadata["help"]), get_origin(kind) is tuple
    if item.metadata.get("positional"):
        count = "+" if several else None if item.default is MISSING else "?"
        parser.add_argument(item.name, help=help, metavar=item.name.upper(), nargs=count)
        return
    flag, metavar = f"--{item.name.replace('_', '-')}", item.metadata["metavar"]
    if kind is bool:
        parser.add_argument(flag, action="store_true", help=help)
    elif several:
        parser.add_argument(flag, action="append", help=help, metavar=metavar)
    else:
        parser.add_argument(flag, type=_converter(kind), help=help, metavar=metavar)


def _percent(text: str) -> str:
    return text.replace("%", "%%")


def _converter(kind: object) -> Callable[[str], object]:
    """The conversion of an option's text to its type: str, int, float or one of the choices of a Literal."""
    members = [member for member in get_args(kind) if member is not type(None)]
    if get_origin(kind) is Literal:
        return lambda text: _choice(text, members)
    if members:  # X | None
        return _converter(members[0])
    return _whole if kind is int else _number if kind is float else str


def _choice(text: str, choices: Sequence[str]) -> str:
    if text not in choices:
        remedy = nearest(text, choices)
        raise ArgumentTypeError(f"expected one of {', '.join(choices)}; got {text!r}{remedy and f'; {remedy}'}")
    return text


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise ArgumentTypeError(f"expected a whole number, got {text!r}") from error


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ArgumentTypeError(f"expected a number, got {text!r}") from error


def _expand(argv: Sequence[str], aliases: Mapping[str, str]) -> Iterator[str]:
    """`argv` with the short options written out."""
    for word in argv:
        name, equals, value = word.partition("=")
        yield f"{aliases.get(name, name)}{equals}{value}"


def _unknown(command: "Command[T]", extra: Sequence[str]) -> str:
    """The message for arguments that no option takes."""
    word = next((word for word in extra if word.startswith("--")), extra[0])
    if not word.startswith("--"):
        return f"unexpected argument {word!r}"
    name = word.removeprefix("--").partition("=")[0]
    items = fields(command.options)
    own = [item.name.replace("_", "-") for item in items if "keys" not in item.metadata]
    for item in items:
        if "keys" in item.metadata:
            return str(item.metadata["unknown"](name, own))
    close = closest(name, own)
    return f"unknown option --{name}" + (f"; did you mean '--{close}'?" if close else "")
