"""Flags that all processes must agree on after every update: a number that is not finite, a wish to stop."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Flags:
    """What some process found in an update: non-finite numbers, a signal, and the loss over all processes."""

    bad: bool
    stop: bool
    loss: float


class FlagReader:
    """Flags come from the device without stopping it: where `lag` is set, one update late.

    Args:
        lag: hand out the flags of the update before; the first answer is then None.
    """

    def __init__(self, lag: bool) -> None:
        self.lag = lag
        self._waiting: tuple[Tensor, torch.cuda.Event | None] | None = None

    def push(self, values: Tensor) -> Flags | None:
        """Take (bad, stop, loss) of an update; give flags of this one, or of the one before."""
        if not self.lag:
            return _flags(values)
        before = self.flush()
        event = None
        if values.device.type == "cuda":
            host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            values = host.copy_(values, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
        self._waiting = (values, event)
        return before

    def flush(self) -> Flags | None:
        """The flags that are still on their way."""
        if self._waiting is None:
            return None
        values, event = self._waiting
        self._waiting = None
        if event is not None:
            event.synchronize()
        return _flags(values)


def _flags(values: Tensor) -> Flags:
    bad, stop, loss = values.tolist()
    return Flags(bool(bad), bool(stop), float(loss))
