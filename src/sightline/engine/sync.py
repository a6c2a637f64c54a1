"""Flags that all processes share after every update: a non-finite number, a request to stop."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class StepFlags:
    """The outcome of an update over all processes: non-finite numbers, a request to stop, the mean loss."""

    bad: bool
    stop: bool
    loss: float

    @classmethod
    def read(cls, values: Tensor) -> "StepFlags":
        """Flags from a tensor (bad, stop, loss)."""
        bad, stop, loss = values.tolist()
        return cls(bool(bad), bool(stop), float(loss))


class FlagReader:
    """Copies flags from the device without blocking it; with `lag`, they arrive one update late.

    Args:
        lag: return the flags of the previous update; the first result is then None.
    """

    def __init__(self, lag: bool) -> None:
        self.lag = lag
        self._pending: tuple[Tensor, torch.cuda.Event | None] | None = None

    def push(self, values: Tensor) -> StepFlags | None:
        """Take (bad, stop, loss) of an update; return the flags of this update, or of the previous one."""
        if not self.lag:
            return StepFlags.read(values)
        previous = self.flush()
        event = None
        if values.device.type == "cuda":
            host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            values = host.copy_(values, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
        self._pending = (values, event)
        return previous

    def flush(self) -> StepFlags | None:
        """The flags that are still on the device."""
        if self._pending is None:
            return None
        values, event = self._pending
        self._pending = None
        if event is not None:
            event.synchronize()
        return StepFlags.read(values)
