"""Commands as data: each has a typed dataclass of options, from which argparse makes the parser.

    @dataclass(frozen=True)
    class Options:
        name: str = positional("model to describe")
        img_size: str | None = option("size of the images")     # --img-size

A boolean is a switch, a tuple or dict an option that can be repeated (or a positional with several values). Argparse
reads texts; `sightline.util.schema` makes the values that the types ask for, and one line for what does not fit.
"""

import re
from argparse import SUPPRESS, Action, ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from inspect import getdoc
from shutil import get_terminal_size
from textwrap import fill
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from sightline.util.errors import InputError
from sightline.util.names import nearest
from sightline.util.schema import build
from sightline.util.text import as_options

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")
V = TypeVar("V")


@dataclass(frozen=True)
class Command(Generic[T]):
    """A command: its options, the function that runs it and returns the exit status (None is 0), help and examples."""

    options: type[T]
    run: Callable[[T], int | None]
    help: str
    examples: str
    usage: str | None = None  # if a list of all options would be too long
    aliases: dict[str, str] = field(default_factory=dict)  # short options by what they replace
    keys: dict[str, str] = field(default_factory=dict)  # options by the key of the configuration that they set


@dataclass(frozen=True)
class Group:
    """A command with subcommands, `sightline NAME WHAT ...`; `noun` names one of them in messages."""

    commands: "Mapping[str, Command[Any] | Group]"
    noun: str
    help: str
    description: str
    examples: str
    metavar: str = "WHAT"


def positional(help: str, *, optional: bool = False) -> Any:
    """Declare an argument given by position."""
    return field(default=None if optional else MISSING, metadata={"help": help, "positional": True})


def option(help: str, *, default: V = None, metavar: str | None = None) -> V:  # type: ignore[assignment]
    """Declare an option, `--name VALUE`."""
    return field(default=default, metadata={"help": help, "metavar": metavar})


def model_arguments() -> Any:
    """Declare `--model-args`, a `ModelArgs`."""
    help = "arguments of the model, as key=value or a JSON object; can be repeated"
    return field(default_factory=dict, metadata={"help": help, "metavar": "ARGS"})


def required(help: str, *, metavar: str) -> Any:
    """Declare an option that must be given."""
    return field(metadata={"help": help, "metavar": metavar})


class Parser(ArgumentParser):
    """An argparse parser that raises `InputError` instead of printing its usage and exiting."""

    def __init__(self, prog: str, description: str, epilog: str, usage: str | None = None) -> None:
        self.names: set[str] = set()
        width = get_terminal_size().columns - 2
        description = "\n\n".join(fill(text, width) for text in description.split("\n\n"))
        super().__init__(
            prog=prog, usage=usage, description=description, epilog=epilog, allow_abbrev=False,
            formatter_class=RawDescriptionHelpFormatter, argument_default=SUPPRESS,
        )  # fmt: skip

    def add_argument(self, *names: str, **options: Any) -> Action:
        self.names.update(names)
        return super().add_argument(*names, **options)

    def error(self, message: str) -> NoReturn:
        raise InputError(message.removeprefix("argument "))


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
        words = list(_expand(argv, command.aliases))
        misspelled = [word for word in words if word[:2] == "--" and word.partition("=")[0] not in parser.names]
        if misspelled and not {"-h", "--help"} & set(words):  # before argparse misses what it was meant to be
            raise InputError(_unknown(command, misspelled))
        parsed, extra = parser.parse_known_args(words)
        if extra:
            raise InputError(_unknown(command, extra))
        given = vars(parsed)
        for item in fields(command.options):
            if "keys" in item.metadata:
                given[item.name] = {key: given.pop(key) for key, _ in item.metadata["keys"]() if key in given}
        return build(command.options, given)
    except InputError as error:
        text = name_options(command, str(error))
        raise InputError(f"{text}{' See' if text.endswith('?') else '; see'} `{prog} --help`") from error


def name_options(command: Command[T], text: str) -> str:
    """A message about arguments of a function, for a command line.

    `img_size: ...` becomes `--img-size: ...`, and `pass on_error=skip` becomes `pass --on-error skip`; keys of the
    configuration become the options that set them.
    """
    own = {item.name for item in fields(command.options) if not item.metadata.get("positional")}
    for key, flag in command.keys.items():
        text = re.sub(rf"(?<![\w.]){re.escape(key)}(?![\w.=]| follows)", flag, text)
    text = as_options(text)
    if "set" in own:  # this command has no options for keys
        text = re.sub(r"--(\w+\.\w+) (\w+)", r"--set \1=\2", text)
    names, colon, rest = text.partition(": ")
    if not own.issuperset(names.split(", ")):
        return names + colon + rest
    return ", ".join(f"--{name.replace('_', '-')}" for name in names.split(", ")) + colon + rest


def _add(parser: Parser, item: "Field[object]", kind: Any) -> None:
    """Add the argument of one field to the parser, or one for each key of a configuration."""
    if "keys" in item.metadata:
        for key, help in item.metadata["keys"]():
            parser.add_argument(f"--{key}", dest=key, help=_percent(help), metavar="VALUE")
        return
    help, several = _percent(item.metadata["help"]), get_origin(kind) in (tuple, dict)
    if item.metadata.get("positional"):
        count = "+" if several else None if item.default is MISSING else "?"
        parser.add_argument(item.name, help=help, metavar=item.name.upper(), nargs=count)
        return
    flag, metavar = f"--{item.name.replace('_', '-')}", item.metadata["metavar"]
    if kind is bool:
        parser.add_argument(flag, action="store_true", help=help)
        return
    if metavar is None and get_origin(kind) is Literal:
        metavar = f"{{{','.join(get_args(kind))}}}"
    needed = item.default is MISSING and item.default_factory is MISSING
    action = "append" if several else "store"
    parser.add_argument(flag, action=action, help=help, metavar=metavar, required=needed)


def _percent(text: str) -> str:
    return text.replace("%", "%%")


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
    near = nearest(f"--{name}", [f"--{each}" for each in own], "", cutoff=0.6)
    return "; ".join(filter(None, (f"unknown option --{name}", near)))
