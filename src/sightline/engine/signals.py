"""What asks a run to stop: signals, and a reader of its output that went away.

Both are noted at once and acted on after the update that is under way; before the first, there is none to wait for.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from sightline.engine.errors import Stopped

STOPPING = ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1")


class StopSignals:
    """Within `with`, the signals of STOPPING are noted in `received`; a second SIGINT interrupts at once."""

    def __init__(self) -> None:
        self.received: str | None = None
        self._before: dict[int, Any] = {}
        self._waiting = True  # for the end of an update

    def __enter__(self) -> "StopSignals":
        for name in STOPPING:
            if hasattr(signal, name):
                number = getattr(signal, name)
                try:
                    self._before[number] = signal.signal(number, self._note)
                except ValueError:  # only the main thread may; elsewhere nobody signals
                    break
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Within it, a signal raises `Stopped`: data are read or made, and there is nothing to save."""
        self._waiting = False
        try:
            yield
        finally:
            self._waiting = True

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = signal.Signals(number).name
        if not self._waiting:
            raise Stopped(f"stopped by {self.received} while data were read; give the same command again")


class _Outlet:
    """A standard output that takes what nobody reads any more (a pipe, a terminal that is gone, a full disk)."""

    def __init__(self, stream: Any, signals: StopSignals) -> None:
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
        with suppress(OSError, ValueError):  # what comes after it goes nowhere
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())


@contextmanager
def listening(signals: StopSignals) -> Iterator[None]:
    """Within it, a reader of the standard output that goes away stops a run as a signal does."""
    before = sys.stdout
    sys.stdout = _Outlet(before, signals)
    try:
        yield
    finally:
        sys.stdout = before
