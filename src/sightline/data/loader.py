"""Loader processes: items of a dataset by key, in batches; those that cannot be used become messages."""

import random
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Generic, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from sightline.data.images import ImageError
from sightline.data.order import Key
from sightline.util.text import say

T = TypeVar("T")
B = TypeVar("B")
Read = Callable[[int, random.Random], T]  # index and source of randomness -> item; raises ImageError
Report = Callable[[Sequence[str]], None]  # messages about items that cannot be used; may raise

SKIP = "data.on_error=skip"  # key of a run that skips what cannot be used


class Items(Dataset[tuple[T | None, list[str]]]):
    """Items of a dataset by (index, seed).

    Args:
        count: how many there are.
        read: gives an item.
        replace: take the next usable item for a broken one, so that training batches keep their size.
    """

    def __init__(self, count: int, read: Read[T], replace: bool) -> None:
        self.count, self.read, self.replace = count, read, replace

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, key: Key) -> tuple[T | None, list[str]]:
        first, seed = key
        broken: list[str] = []
        for index in (*range(first, self.count), *range(first)):
            try:
                return self.read(index, random.Random(seed)), broken
            except ImageError as error:
                broken.append(str(error))
                if not self.replace:
                    break
        return None, broken


class Keys:
    """A batch sampler; the main process sets `keys` before every pass."""

    def __init__(self) -> None:
        self.keys: Callable[[], Iterator[list[Key]]] = lambda: iter(())

    def __iter__(self) -> Iterator[list[Key]]:
        return self.keys()


def chunks(count: int, size: int) -> Iterator[list[Key]]:
    """The keys of `count` items in their order, `size` in a batch, without randomness."""
    for start in range(0, count, size):
        yield [(index, 0) for index in range(start, min(start + size, count))]


def _collate(pack: Callable[[list[T]], B], samples: Sequence[tuple[T | None, list[str]]]) -> tuple[B, int, list[str]]:
    """A batch, how many items it has, and the messages about those that it lacks."""
    items = [item for item, _ in samples if item is not None]
    return pack(items), len(items), [message for _, broken in samples for message in broken]


class ItemLoader(Generic[T, B]):
    """Loads batches of items, with processes that outlive an epoch.

    Args:
        items: what to load.
        workers: processes; 0 loads in the main one.
        report: gets the messages of every batch that has some.
        pack: makes a batch of a list of items, which may be empty; called in the loader process.
        pin: put tensors in pinned memory.
    """

    def __init__(
        self, items: Items[T], workers: int, report: Report, pack: Callable[[list[T]], B], pin: bool = False
    ) -> None:
        self.keys, self.report, self.whole = Keys(), report, items.replace
        self.loader = DataLoader(
            items, batch_sampler=self.keys, num_workers=workers, collate_fn=partial(_collate, pack), pin_memory=pin,
            persistent_workers=workers > 0, worker_init_fn=start_worker,
        )  # fmt: skip

    def batches(self, keys: Callable[[], Iterator[list[Key]]]) -> Iterator[B]:
        """The batches with these keys.

        Raises:
            ImageError: an item cannot be used and `report` raises, or there is none to replace it with.
        """
        self.keys.keys = keys
        for batch, count, messages in self.loader:
            if messages:
                self.report(messages)
            if self.whole and not count:
                raise ImageError(f"no usable image to train on: {messages[0]}; repair them")
            yield batch

    def close(self) -> None:
        """End the loader processes. They ignore signals, so they must be ended explicitly."""
        iterator = getattr(self.loader, "_iterator", None)
        if iterator is not None and hasattr(iterator, "_shutdown_workers"):
            iterator._shutdown_workers()


def start_worker(number: int) -> None:
    """Ignore signals: the main process decides when loading ends, not a signal to the whole process group."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    torch.set_num_threads(1)


class BrokenImages:
    """Messages about images that cannot be used, each once.

    Args:
        on_error: "stop" or "skip".
        skip: the option that skips them, for messages.
    """

    def __init__(self, on_error: str, skip: str = SKIP) -> None:
        self.on_error, self.skip = on_error, skip
        self.messages: dict[str, None] = {}

    def add(self, messages: Iterable[str]) -> None:
        """Print and keep what is new; raise ImageError instead if `on_error` is "stop"."""
        for message in messages:
            if self.on_error == "stop":
                raise ImageError(f"{message}; repair or remove it, or pass {self.skip}")
            if message not in self.messages:
                self.messages[message] = None
                say(f"skipped: {message}")


def stack(items: Sequence[tuple[torch.Tensor, torch.Tensor | int]]) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Images of one size and their numbers or masks as two tensors; None for no images."""
    if not items:
        return None
    images, others = default_collate(list(items))
    return images, others


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor on the device; the host does not wait for the copy."""
    pinned = tensor.pin_memory() if device.type == "cuda" else tensor
    return pinned.to(device, non_blocking=True)
