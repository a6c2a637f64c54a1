"""The command `sightline`: parse, run one command, and turn an error into one line and an exit status.

Status 0 is success, 1 a run that could not continue or a measurement that failed, 2 bad input, 75 a run that was
stopped by a signal and saved, 130 an interrupt, 141 a closed pipe.
"""

import contextlib
import os
import sys
from collections.abc import Sequence

from sightline.cli import analyze, bench, convert, download, eval, explore, export, info, linearize, lra, predict, train
from sightline.cli import list as list_models
from sightline.cli.options import Command, Group, Parser, name_options, parse
from sightline.cli.output import quiet
from sightline.util.errors import FileError, InputError, RunError, cut_words, is_out_of_memory
from sightline.util.names import nearest
from sightline.util.provenance import VERSION
from sightline.util.text import one_line, say

COMMANDS: "dict[str, Command | Group]" = {
    "list": list_models.COMMAND,
    "info": info.COMMAND,
    "download": download.COMMAND,
    "convert": convert.COMMAND,
    "export": export.COMMAND,
    "bench": bench.COMMAND,
    "train": train.COMMAND,
    "eval": eval.COMMAND,
    "linearize": linearize.COMMAND,
    "lra": lra.COMMAND,
    "predict": predict.COMMAND,
    "analyze": analyze.COMMAND,
    "explore": explore.COMMAND,
}
SIGHTLINE = Group(
    COMMANDS,
    "command",
    help="",
    description="Vision transformers whose attention costs linear time.",
    examples=(
        "  sightline train\n"
        "  sightline predict photo.jpg --checkpoint runs/quick\n"
        "  sightline COMMAND --help"
    ),
    metavar="COMMAND",
)  # fmt: skip


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
        _print_error(f"error: {cut_words(_message(error))}")
        return 2
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not is_out_of_memory(str(error)):
            raise
        _print_error(f"out of memory: {str(error) or 'no room'}; give smaller images, batches or models")
        return 1


def _print_error(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        say(f"sightline: {one_line(text)}", file=sys.stderr)


def _message(error: Exception) -> str:
    """The message of an error; of the system's with its file and a remedy; of a loader worker's its last line."""
    text = str(error).strip()
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror.lower()}; check the path, its permissions and the space left"
    if text.startswith("Caught ") and "DataLoader worker" in text:
        return text.splitlines()[-1].partition(": ")[2]
    return text


def _dispatch(argv: list[str]) -> int:
    """Find the command, read its options, run it."""
    command: Command | Group = SIGHTLINE
    prog, rest = "sightline", argv
    while isinstance(command, Group):
        name = next((word for word in rest if not word.startswith("-")), None)
        if name is None:
            return _without_command(command, prog, rest)
        if name not in command.commands:
            raise InputError(f"no {command.noun} {name!r}; {nearest(name, command.commands)}")
        command, prog, at = command.commands[name], f"{prog} {name}", rest.index(name)
        rest = rest[:at] + rest[at + 1 :]
    try:
        options = parse(command, prog, rest)
    except SystemExit as done:  # after --help
        return int(done.code or 0)
    try:
        return command.run(options) or 0
    except (InputError, FileError) as error:
        kind = InputError if isinstance(error, InputError) else FileError
        raise kind(name_options(command, str(error))) from error


def _without_command(group: Group, prog: str, argv: Sequence[str]) -> int:
    """Print the help of a command that has subcommands, or the version."""
    if "--version" in argv and group is SIGHTLINE:
        say(f"sightline {VERSION}")
        return 0
    if not {"-h", "--help"} & set(argv):
        expected = f"expected one of {', '.join(group.commands)}; see `{prog} --help`"
        raise InputError(f"no {group.noun}: {expected}; got {' '.join(argv) or 'none'}")
    parser = Parser(prog, group.description, f"examples:\n{group.examples}")
    if group is SIGHTLINE:
        parser.add_argument("--version", action="store_true", help="show the version and exit")
    table = parser.add_subparsers(metavar=group.metavar, title="commands")
    for name, command in group.commands.items():
        table.add_parser(name, help=command.help, prog="", description="", epilog="")
    parser.print_help()
    return 0
