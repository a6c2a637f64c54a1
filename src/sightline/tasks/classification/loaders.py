"""Loaders of training batches: worker processes, the memory of the device, or synthetic data to measure speed.

Every loader gives the local micro-batches of an epoch, normalized and on the device, and the local share of the images
to evaluate.
"""

from collections.abc import Iterator
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from sightline.data.loader import Keys, close_loader
from sightline.data.order import Key, Order, Placement, derive
from sightline.data.splits import Split
from sightline.tasks.base import Note
from sightline.tasks.card import ModelCard
from sightline.tasks.classification.augment import COLUMNS, BatchAugment
from sightline.tasks.classification.batch import Batch, Normalize
from sightline.tasks.classification.config import Augment, Data
from sightline.tasks.classification.preload import Preloaded, preload, preloading
from sightline.tasks.classification.samples import Samples, eval_transform, make_loader, train_transform
from sightline.tasks.metrics import NO_LABEL

AHEAD = (
    256  # images augmented at a time, in whole micro-batches: small ones would spend their time on launching kernels
)
SYNTHETIC_STEPS = 100  # updates per epoch of synthetic data


class Loader(Protocol):
    """The interface of a loader."""

    order: Order

    def micro_batches(self, epoch: int, start: int) -> Iterator[Batch]: ...

    def evaluation(self) -> Iterator[Batch]: ...

    def close(self) -> None: ...


class WorkerLoader:
    """Images decoded and augmented by loader processes, normalized on the device."""

    def __init__(
        self, data: Data, augment: Augment, card: ModelCard, train: Split, val: Split, placement: Placement
    ) -> None:
        self.order = placement.order(len(train), augment.repeats)
        self.placement = placement
        self.card = card
        self.val = val
        self.normalize = Normalize(card.mean, card.std, placement.device)
        channels, skip = card.input_size[0], data.on_error == "skip"
        pin = placement.device.type == "cuda"
        self.train_keys, self.eval_keys = Keys(), Keys()
        samples = Samples(train, train_transform(card, augment), channels, replace=skip)
        self.train_loader = make_loader(samples, self.train_keys, data.workers, pin)
        self.eval_loader = make_loader(Samples(val, eval_transform(card), channels), self.eval_keys, data.workers, pin)

    def micro_batches(self, epoch: int, start: int) -> Iterator[Batch]:
        self.train_keys.keys = partial(self.order.keys, epoch, start)
        for batch in self.train_loader:
            yield self._ready(batch)

    def evaluation(self) -> Iterator[Batch]:
        self.eval_keys.keys = self._eval_keys
        for batch in self.eval_loader:
            yield self._ready(batch) if len(batch.targets) else nothing(self.card, self.placement.device, batch.broken)

    def close(self) -> None:
        close_loader(self.train_loader)
        close_loader(self.eval_loader)

    def _eval_keys(self) -> Iterator[list[Key]]:
        for local in self.placement.evaluation(len(self.val)):
            yield [(index, 0) for index in local]

    def _ready(self, batch: Batch) -> Batch:
        moved = batch.to(self.placement.device)
        return Batch(self.normalize(moved.images), moved.targets, batch.broken)


class DeviceLoader:
    """Images kept as uint8 on the device and augmented there in batches."""

    def __init__(
        self,
        data: Data,
        augment: Augment,
        card: ModelCard,
        splits: tuple[Split, Split],
        placement: Placement,
        note: Note,
        compiled: bool,
    ) -> None:
        self.placement = placement
        self.card = card
        self.normalize = Normalize(card.mean, card.std, placement.device)
        size = card.input_size[1:]
        height, width = size
        change = BatchAugment(augment, (height, width), card.mean, placement.device)
        self.augment = (
            torch.compile(change.__call__, dynamic=False) if compiled and placement.device.type == "cuda" else change
        )
        kept = data.preload_size
        pair = (kept, kept) if isinstance(kept, int) else kept
        train, val = (Samples(split, eval_transform(card), card.input_size[0]) for split in splits)
        self.train = self._load(preloading(train, card, pair), data.workers, note, "training images")
        self.val = self._load(val, data.workers, note, "test images")
        self.order = placement.order(len(self.train), augment.repeats)
        self.broken: tuple[str, ...] = (*self.train.broken, *self.val.broken)

    def _load(self, samples: Samples, workers: int, note: Note, what: str) -> Preloaded:
        return preload(samples, workers, self.placement.device, partial(note, what))

    def micro_batches(self, epoch: int, start: int) -> Iterator[Batch]:
        order, first = self.order, start * self.order.accumulate
        sequence = order.sequence(epoch)
        indices = torch.stack([sequence[positions] for positions in order.positions()]).to(self.placement.device)
        for group in _groups(len(indices), max(1, AHEAD // order.local)):
            if group.stop <= first:
                continue
            whole = self._group(epoch, group, indices)
            for number, images, targets in zip(group, *(t.split(order.local) for t in whole), strict=True):
                if number >= first:
                    broken, self.broken = self.broken, ()
                    yield Batch(images, targets, broken)

    def _group(self, epoch: int, group: range, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Images and targets of several micro-batches, augmented at once from the random numbers of each."""
        order, slots = self.order, self.order.slots().numpy()
        batch = self.train.take(indices[group.start : group.stop].flatten())
        drawn = []
        for number in group:
            rng = np.random.default_rng(derive(order.seed, epoch, number, 2))
            drawn.append(rng.random((order.micro_batch, COLUMNS), dtype=np.float32)[slots])
        pixels = self.augment(batch.images, _to(np.concatenate(drawn), self.placement.device))
        return (pixels - self.normalize.mean) / self.normalize.std, batch.targets

    def evaluation(self) -> Iterator[Batch]:
        for local in self.placement.evaluation(len(self.val)):
            if not local:
                yield nothing(self.card, self.placement.device)
                continue
            taken = slice(local.start, local.stop)
            yield Batch(self.normalize(self.val.images[taken]), self.val.targets[taken])

    def close(self) -> None:
        pass


class SyntheticLoader:
    """The same random batch every time, to measure the speed of everything but the data."""

    def __init__(self, card: ModelCard, placement: Placement) -> None:
        self.order = placement.order(placement.batch * SYNTHETIC_STEPS)
        self.placement = placement
        generator = torch.Generator().manual_seed(placement.seed)
        images = torch.randn(self.order.local, *card.input_size, generator=generator)
        targets = torch.randint(len(card.classes), (self.order.local,), generator=generator)
        self.batch = Batch(images, targets).to(placement.device)

    def micro_batches(self, epoch: int, start: int) -> Iterator[Batch]:
        for _ in self.order.positions(start):
            yield self.batch

    def evaluation(self) -> Iterator[Batch]:
        yield self.batch

    def close(self) -> None:
        pass


def nothing(card: ModelCard, device: torch.device, broken: tuple[str, ...] = ()) -> Batch:
    """One image that does not count: processes that shard a model must all run it equally often."""
    return Batch(torch.zeros(1, *card.input_size, device=device), torch.full((1,), NO_LABEL, device=device), broken)


def _groups(count: int, size: int) -> Iterator[range]:
    """`count` micro-batches in groups of `size`, the rest one by one, so that there are only two shapes.

    Groups do not depend on where an epoch is resumed, so a resumed run computes the same ones.
    """
    whole = count - count % size
    yield from (range(start, start + size) for start in range(0, whole, size))
    yield from (range(number, number + 1) for number in range(whole, count))


def _to(values: np.ndarray, device: torch.device) -> Tensor:
    tensor = torch.from_numpy(values)
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)
