"""The command `sightline`: parse, run one command, and turn what goes wrong into one line and an exit status.

Status 0 is success, 1 a run that could not go on or a measurement that failed, 2 bad input, 75 a run that was stopped
by a signal and saved, 130 an interrupt, 141 a reader of the output that went away.
"""

import contextlib
import errno
import os
import sys
from collections.abc import Sequence
from inspect import getdoc

import sightline
from sightline.cli import bench, convert, demo, eval, info, predict, train
from sightline.cli import list as list_models
from sightline.cli.options import Command, Parser, UsageError, add_options, check_keys, expand, nearest, read_options
from sightline.cli.quiet import quiet
from sightline.engine.errors import RunError

COMMANDS: dict[str, Command] = {
    "list": list_models.COMMAND,
    "info": info.COMMAND,
    "convert": convert.COMMAND,
    "bench": bench.COMMAND,
    "demo": demo.COMMAND,
    "train": train.COMMAND,
    "eval": eval.COMMAND,
    "predict": predict.COMMAND,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    try:
        with quiet():
            status = _dispatch(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        _silence()
        return 141
    except KeyboardInterrupt:
        _say("interrupted")
        return 130
    except RunError as error:
        _say(str(error))
        return error.status
    except (ValueError, OSError) as error:
        _say(f"error: {_one_line(error)}")
        return 2


def _say(text: str) -> None:
    """One line of what went wrong, to whoever still listens."""
    with contextlib.suppress(OSError, ValueError):
        print(f"sightline: {text}", file=sys.stderr, flush=True)


REMEDIES = {
    errno.EACCES: "look at its permissions",
    errno.EPERM: "look at its permissions",
    errno.EROFS: "give a place that can be written",
    errno.ENOENT: "look at the path",
    errno.ENOTDIR: "look at the path",
    errno.EISDIR: "give a file",
    errno.ENOSPC: "make room",
}


def _one_line(error: Exception) -> str:
    """The message; of the system's errors with a remedy; of one that a loader worker sent, what it was about."""
    text = str(error).strip()
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        remedy = REMEDIES.get(error.errno or 0)
        return f"{error.filename}: {error.strerror.lower()}{f'; {remedy}' if remedy else ''}"
    if text.startswith("Caught ") and "DataLoader worker" in text:
        text = text.splitlines()[-1].partition(": ")[2]
    return " ".join(text.split())


def _dispatch(argv: list[str]) -> int:
    name = next((word for word in argv if not word.startswith("-")), None)
    if name is None and not {"-h", "--help", "--version"} & set(argv):
        raise UsageError(f"no command; give one of {', '.join(COMMANDS)}, or --help")
    if name is not None and name not in COMMANDS:
        remedy = nearest(name, COMMANDS, f"give one of {', '.join(COMMANDS)}")
        raise UsageError(f"no command {name!r}; {remedy}")
    if name is not None:
        argv = expand(argv, COMMANDS[name].aliases)
    try:
        if name is not None:
            check_keys(COMMANDS[name].options, argv)
        parsed = build_parser().parse_args(argv)
    except SystemExit as done:  # --help and --version
        return int(done.code or 0)
    except UsageError as error:
        raise UsageError(f"{error}; see `sightline {name} --help`" if name else str(error)) from error
    command = COMMANDS[parsed.command]
    return command.run(read_options(command.options, parsed[parsed.command])) or 0


def build_parser() -> Parser:
    """The parser of all commands."""
    parser = Parser(
        prog="sightline",
        description="Vision transformers whose attention costs linear time.",
        epilog="`sightline COMMAND --help` says more about a command.",
        version=sightline.__version__,
    )
    commands = parser.add_subcommands(
        required=True, dest="command", metavar="COMMAND", title="commands", description=None
    )
    for name, command in COMMANDS.items():
        child = Parser(
            usage=command.usage, description=getdoc(command.options), epilog=f"examples:\n{command.examples}"
        )
        add_options(child, command.options)
        commands.add_subcommand(name, child, help=command.help)
    return parser


def _silence() -> None:
    """Nobody reads the output any more: let the flush at exit go nowhere."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
