"""Signals that ask a run to stop: noted at once, acted on after the update that is under way."""

import signal
from types import FrameType
from typing import Any

STOPPING = ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1")


class StopSignals:
    """Within `with`, the signals of STOPPING are noted in `received`; a second SIGINT interrupts at once."""

    def __init__(self) -> None:
        self.received: str | None = None
        self._before: dict[int, Any] = {}

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

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = signal.Signals(number).name
