"""The command `sightline`: parse, run one command, and turn an error into one line and an exit status.

Status 0 is success, 1 a run that could not continue or a measurement that failed, 2 bad input, 75 a run that was
stopped by a signal and saved, 130 an interrupt, 141 a closed pipe.
"""

import contextlib
import errno
import os
import sys
from collections.abc import Mapping, Sequence

from sightline.cli import analyze, bench, convert, eval, info, lra, predict, train
from sightline.cli import list as list_models
from sightline.cli.options import Command, Group, Parser, parse
from sightline.cli.output import one_line, quiet
from sightline.engine.errors import RunError
from sightline.util.errors import InputError
from sightline.util.names import nearest
from sightline.util.provenance import VERSION

COMMANDS: "dict[str, Command | Group]" = {
    "list": list_models.COMMAND,
    "info": info.COMMAND,
    "convert": convert.COMMAND,
    "bench": bench.COMMAND,
    "train": train.COMMAND,
    "eval": eval.COMMAND,
    "lra": lra.COMMAND,
    "predict": predict.COMMAND,
    "analyze": analyze.COMMAND,
}
HELP = ("-h", "--help")
REMEDIES = {
    errno.EACCES: "check its permissions",
    errno.EPERM: "check its permissions",
    errno.EROFS: "give a path that can be written",
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "check the path",
    errno.EISDIR: "give a file",
    errno.ENOSPC: "free some space",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    try:
        with quiet():
            status = _dispatch(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        with contextlib.suppress(OSError, ValueError):  # let the flush at exit go nowhere
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        _print_error("interrupted")
        return 130
    except RunError as error:
        _print_error(str(error))
        return error.status
    except (ValueError, OSError) as error:
        _print_error(f"error: {_message(error)}")
        return 2


def _print_error(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(f"sightline: {one_line(text)}", file=sys.stderr, flush=True)


def _message(error: Exception) -> str:
    """The message of an error; of the system's with a remedy; of one sent by a loader worker, its last line."""
    text = str(error).strip()
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        remedy = REMEDIES.get(error.errno or 0)
        return f"{error.filename}: {error.strerror.lower()}{f'; {remedy}' if remedy else ''}"
    if text.startswith("Caught ") and "DataLoader worker" in text:
        return text.splitlines()[-1].partition(": ")[2]
    return text


def _dispatch(argv: list[str]) -> int:
    """Find the command, read its options, run it."""
    name = next((word for word in argv if not word.startswith("-")), None)
    if name is None:
        return _top(argv)
    words = argv[: argv.index(name)]
    command, prog, rest = _named(name, COMMANDS, "command"), f"sightline {name}", argv[argv.index(name) + 1 :]
    if isinstance(command, Group):
        what = rest[0] if rest else ""
        if what.startswith("-") or not what:
            if set(HELP) & {*words, *rest}:
                return _help(prog, command.description, command.commands, "WHAT", f"examples:\n{command.examples}")
            raise InputError(f"analyze what? give one of {', '.join(command.commands)}; see `{prog} --help`")
        command, prog, rest = _named(what, command.commands, f"{name} {command.noun}"), f"{prog} {what}", rest[1:]
    assert isinstance(command, Command)
    try:
        options = parse(command, prog, [*words, *rest])
    except SystemExit as done:  # after --help
        return int(done.code or 0)
    return command.run(options) or 0


def _named(name: str, commands: "Mapping[str, Command | Group]", noun: str) -> "Command | Group":
    if name not in commands:
        remedy = nearest(name, commands, f"expected one of {', '.join(commands)}")
        raise InputError(f"no {noun} {name!r}; {remedy}")
    return commands[name]


def _top(argv: Sequence[str]) -> int:
    """`sightline` without a command."""
    if set(HELP) & set(argv):
        description = "Vision transformers whose attention costs linear time."
        return _help("sightline", description, COMMANDS, "COMMAND", "`sightline COMMAND --help` describes a command.")
    if "--version" in argv:
        print(f"sightline {VERSION}")
        return 0
    got = f"got {argv[0]!r}" if argv else "got none"
    raise InputError(f"no command: expected one of {', '.join(COMMANDS)}, or --help; {got}")


def _help(prog: str, description: str, commands: "Mapping[str, Command | Group]", metavar: str, epilog: str) -> int:
    """Print the help of a command that has subcommands."""
    parser = Parser(prog, description, epilog)
    if prog == "sightline":
        parser.add_argument("--version", action="store_true", help="show the version and exit")
    table = parser.add_subparsers(metavar=metavar, title="commands")
    for name, command in commands.items():
        table.add_parser(name, help=command.help, prog="", description="", epilog="")
    parser.print_help()
    return 0
