"""Loader processes: which keys they read next, how they start and how they end."""

import signal
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch.utils.data import DataLoader

from sightline.data.order import Key

T = TypeVar("T")


class Keys:
    """A batch sampler; the main process sets `keys` before every pass."""

    def __init__(self) -> None:
        self.keys: Callable[[], Iterator[list[Key]]] = lambda: iter(())

    def __iter__(self) -> Iterator[list[Key]]:
        return self.keys()


def start_worker(number: int) -> None:
    """Ignore signals: the main process decides when loading ends, not a signal to the whole process group."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    torch.set_num_threads(1)


def close_loader(loader: DataLoader[T]) -> None:
    """End the processes of a loader. They ignore signals, so they must be ended explicitly."""
    iterator = getattr(loader, "_iterator", None)
    if iterator is not None and hasattr(iterator, "_shutdown_workers"):
        iterator._shutdown_workers()
