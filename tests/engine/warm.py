"""Commands as processes of their own without the seconds that imports take: forked off a server that made them.

process = Warm(["train", "--config", ...])
process.pid, process.poll(), process.communicate() and process.returncode are as those of subprocess.Popen
"""

import atexit
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.engine.tiny import ENVIRONMENT

PRELOAD = [
    "accelerate",
    "sightline.cli.main",
    "sightline.engine.train",
    "sightline.engine.report",
    "sightline.tasks.classification.spec",
    "sightline.tasks.classification.task",
    "tests.engine.warm",
]
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(PRELOAD)


class Warm:
    """`sightline` with `arguments`, running in a session of its own.

    Args:
        stdout: path of a pipe or terminal to write to; by default what is written is kept for `communicate`.
        before: called in the process before the command.
        environment: of the process.
    """

    def __init__(
        self,
        arguments: list[str],
        stdout: str | None = None,
        before: Callable[[], None] | None = None,
        environment: dict[str, str] = ENVIRONMENT,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="warm")
        self._files = (stdout or f"{self._folder.name}/stdout", f"{self._folder.name}/stderr")
        self._process = CONTEXT.Process(target=_command, args=(arguments, *self._files, before, environment))
        self._process.start()
        self.pid = self._process.pid
        assert self.pid is not None
        atexit.register(self._process.kill)

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def terminate(self) -> None:
        os.kill(self._process.pid or 0, signal.SIGTERM)

    def kill(self) -> None:
        os.kill(self._process.pid or 0, signal.SIGKILL)

    def communicate(self, timeout: float = 240) -> tuple[str, str]:
        """Wait for the end; what was written to stdout and stderr."""
        self._process.join(timeout)
        assert self._process.exitcode is not None, "the command does not end"
        return _text(self._files[0]), _text(self._files[1])


def run(arguments: list[str], before: Callable[[], None] | None = None) -> subprocess.CompletedProcess[str]:
    """Run to the end."""
    process = Warm(arguments, before=before)
    out, errors = process.communicate()
    return subprocess.CompletedProcess(arguments, process.returncode or 0, out, errors)


def _text(path: str) -> str:
    return Path(path).read_text() if Path(path).is_file() else ""


def _command(
    arguments: list[str], stdout: str, stderr: str, before: Callable[[], None] | None, environment: dict[str, str]
) -> None:
    from sightline.cli.main import main

    multiprocessing.set_start_method(None, force=True)  # that of the system again, as for any command
    os.setsid()
    for path, number in ((stdout, 1), (stderr, 2)):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOCTTY, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
    os.environ.update(environment)
    os.fsync = lambda file: None  # as in conftest.py
    if before is not None:
        before()
    sys.exit(main(arguments))
