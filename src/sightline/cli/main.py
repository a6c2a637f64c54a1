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
from typing import Any

import sightline
from sightline.cli import analyze, bench, convert, demo, eval, info, lra, predict, train
from sightline.cli import list as list_models
from sightline.cli.options import (
    Command,
    Group,
    Parser,
    UsageError,
    add_options,
    check_keys,
    expand,
    nearest,
    read_options,
)
from sightline.cli.quiet import quiet
from sightline.engine.errors import RunError

COMMANDS: dict[str, Command | Group] = {
    "list": list_models.COMMAND,
    "info": info.COMMAND,
    "convert": convert.COMMAND,
    "bench": bench.COMMAND,
    "demo": demo.COMMAND,
    "train": train.COMMAND,
    "eval": eval.COMMAND,
    "lra": lra.COMMAND,
    "predict": predict.COMMAND,
    "analyze": analyze.COMMAND,
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
    command = _chosen(name, argv) if name is not None else None
    try:
        if command is not None:
            argv = expand(argv, command.aliases)
            check_keys(command.options, argv)
        parsed = build_parser().parse_args(argv)
    except SystemExit as done:  # --help and --version
        return int(done.code or 0)
    except UsageError as error:
        words = name if name is None or isinstance(COMMANDS[name], Command) else f"{name} {argv[argv.index(name) + 1]}"
        raise UsageError(f"{error}; see `sightline {words} --help`" if name else str(error)) from error
    assert command is not None
    options = parsed[parsed.command]
    if isinstance(COMMANDS[parsed.command], Group):
        options = options[options.what]
    return command.run(read_options(command.options, options)) or 0


def _chosen(name: str, argv: list[str]) -> Command | None:
    """The command that is meant; None where a group is asked for help."""
    command = COMMANDS[name]
    if isinstance(command, Command):
        return command
    following = argv[argv.index(name) + 1 :]
    what = following[0] if following else ""
    if what in command.commands:
        return command.commands[what]
    if {"-h", "--help"} & set(following):
        return None
    choices = f"give one of {', '.join(command.commands)}"
    if not what or what.startswith("-"):
        raise UsageError(f"{name} what? {choices}; see `sightline {name} --help`")
    raise UsageError(f"{name}: no {command.noun} {what!r}; {nearest(what, command.commands, choices)}")


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
        _add(commands, name, command)
    return parser


def _add(commands: Any, name: str, command: Command | Group) -> None:
    """Add a command, or a group with its own."""
    usage, description = None, ""
    if isinstance(command, Command):
        usage, description = command.usage, getdoc(command.options) or ""
    else:
        description = command.description
    child = Parser(usage=usage, description=description, epilog=f"examples:\n{command.examples}")
    if isinstance(command, Command):
        add_options(child, command.options)
    commands.add_subcommand(name, child, help=command.help)
    if isinstance(command, Group):  # jsonargparse wants the outer level first
        inner = child.add_subcommands(required=True, dest="what", metavar="WHAT", title="what", description=None)
        for what, own in command.commands.items():
            _add(inner, what, own)


def _silence() -> None:
    """Nobody reads the output any more: let the flush at exit go nowhere."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
