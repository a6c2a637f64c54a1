"""Requests to stop a run: signals, and a closed standard output.

A request is recorded and takes effect after the current update; before the first update, at once.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, TextIO

from sightline.util.errors import RunError

STOPPING = ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1")


class Stopped(RunError):
    """A signal stopped the run, its state is saved, and the same command resumes it."""

    status = 75  # EX_TEMPFAIL


class StopSignals:
    """A context that records in `received` a signal of STOPPING or a closed standard output.

    A second SIGINT interrupts at once.
    """

    def __init__(self) -> None:
        self.received: str | None = None
        self._handlers: dict[int, Any] = {}  # of the signal module
        self._stdout = sys.stdout
        self._deferred = True  # until the end of an update

    def __enter__(self) -> "StopSignals":
        sys.stdout = _Output(self._stdout, self)
        with suppress(ValueError):  # only the main thread may set handlers
            for number in (getattr(signal, name) for name in STOPPING if hasattr(signal, name)):
                self._handlers[number] = signal.signal(number, self._record)
        return self

    def __exit__(self, *_: object) -> None:
        sys.stdout = self._stdout
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """A context in which a signal raises `Stopped`: data is being read, and there is nothing to save yet."""
        self._deferred = False
        try:
            yield
        finally:
            self._deferred = True

    def _record(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = signal.Signals(number).name
        if not self._deferred:
            raise Stopped(f"stopped by {self.received} before the first update; run the same command again")


class _Output:
    """A standard output that survives a closed pipe, a closed terminal or a full disk."""

    def __init__(self, stream: TextIO, signals: StopSignals) -> None:
        self._stream, self._signals = stream, signals

    def write(self, text: str) -> int:
        try:
            return int(self._stream.write(text))
        except OSError as error:
            self._lost(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._lost(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _lost(self, error: OSError) -> None:
        gone = "a broken pipe" if isinstance(error, BrokenPipeError) else f"an output that fails ({error.strerror})"
        self._signals.received = self._signals.received or gone
        with suppress(OSError, ValueError):  # discard the rest
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
