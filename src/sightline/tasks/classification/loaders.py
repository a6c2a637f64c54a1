"""Where batches come from: loader processes, the memory of the device, or nowhere (to measure speed).

Every feed gives the local parts of an epoch's updates, as normalised batches on the device, and the local share of the
images to evaluate.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from sightline.data.loader import Keys, close_loader
from sightline.data.order import Key, Order, Place, derive
from sightline.tasks.card import ModelCard
from sightline.tasks.classification.augment import COLUMNS, BatchAugment
from sightline.tasks.classification.batch import Batch, Normalize
from sightline.tasks.classification.config import Augment, Data
from sightline.tasks.classification.data import Split
from sightline.tasks.classification.preload import Preloaded, preload, preloading
from sightline.tasks.classification.samples import Samples, eval_transform, make_loader, train_transform
from sightline.tasks.metrics import NO_LABEL

AHEAD = 256  # images augmented at a time, in whole parts: small batches would spend their time on launching kernels
SYNTHETIC_STEPS = 100  # updates of an epoch of synthetic data
Note = Callable[[str, int, int], None]  # what, done, of how many


class Feed(Protocol):
    """What a task asks of its data."""

    order: Order

    def parts(self, epoch: int, start: int) -> Iterator[Batch]: ...

    def evaluation(self) -> Iterator[Batch]: ...

    def close(self) -> None: ...


class LoaderFeed:
    """Images decoded and augmented by loader processes, normalised on the device."""

    def __init__(self, data: Data, augment: Augment, card: ModelCard, train: Split, val: Split, place: Place) -> None:
        self.order = place.order(len(train), augment.repeats)
        self.place = place
        self.card = card
        self.val = val
        self.normalize = Normalize(card.mean, card.std, place.device)
        channels, skip = card.input_size[0], data.on_error == "skip"
        pin = place.device.type == "cuda"
        self.train_keys, self.eval_keys = Keys(), Keys()
        samples = Samples(train, train_transform(card, augment), channels, replace=skip)
        self.train_loader = make_loader(samples, self.train_keys, data.workers, pin)
        self.eval_loader = make_loader(Samples(val, eval_transform(card), channels), self.eval_keys, data.workers, pin)

    def parts(self, epoch: int, start: int) -> Iterator[Batch]:
        self.train_keys.keys = partial(self.order.keys, epoch, start)
        for batch in self.train_loader:
            yield self._ready(batch)

    def evaluation(self) -> Iterator[Batch]:
        self.eval_keys.keys = self._eval_keys
        for batch in self.eval_loader:
            yield self._ready(batch) if len(batch.targets) else nothing(self.card, self.place.device, batch.broken)

    def close(self) -> None:
        close_loader(self.train_loader)
        close_loader(self.eval_loader)

    def _eval_keys(self) -> Iterator[list[Key]]:
        for local in self.place.evaluation(len(self.val)):
            yield [(index, 0) for index in local]

    def _ready(self, batch: Batch) -> Batch:
        moved = batch.to(self.place.device)
        return Batch(self.normalize(moved.images), moved.targets, batch.broken)


class MemoryFeed:
    """Images kept as uint8 on the device and augmented there in batches."""

    def __init__(
        self,
        data: Data,
        augment: Augment,
        card: ModelCard,
        splits: tuple[Split, Split],
        place: Place,
        note: Note,
        compiled: bool,
    ) -> None:
        self.place = place
        self.card = card
        self.normalize = Normalize(card.mean, card.std, place.device)
        size = card.input_size[1:]
        height, width = size
        change = BatchAugment(augment, (height, width), card.mean, place.device)
        self.augment = (
            torch.compile(change.__call__, dynamic=False) if compiled and place.device.type == "cuda" else change
        )
        kept = data.preload_size
        pair = (kept, kept) if isinstance(kept, int) else kept
        train, val = (Samples(split, eval_transform(card), card.input_size[0]) for split in splits)
        self.train = self._load(preloading(train, card, pair), data.workers, note, "training images")
        self.val = self._load(val, data.workers, note, "test images")
        self.order = place.order(len(self.train), augment.repeats)
        self.broken: tuple[str, ...] = (*self.train.broken, *self.val.broken)

    def _load(self, samples: Samples, workers: int, note: Note, what: str) -> Preloaded:
        return preload(samples, workers, self.place.device, partial(note, what))

    def parts(self, epoch: int, start: int) -> Iterator[Batch]:
        order, first = self.order, start * self.order.parts
        sequence = order.sequence(epoch)
        indices = torch.stack([sequence[places] for places in order.places()]).to(self.place.device)
        for group in _groups(len(indices), max(1, AHEAD // order.local)):
            if group.stop <= first:
                continue
            whole = self._group(epoch, group, indices)
            for part, images, targets in zip(group, *(t.split(order.local) for t in whole), strict=True):
                if part >= first:
                    broken, self.broken = self.broken, ()
                    yield Batch(images, targets, broken)

    def _group(self, epoch: int, group: range, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Images and targets of several parts, augmented at once, from the random numbers of each."""
        order, slots = self.order, self.order.slots().numpy()
        batch = self.train.take(indices[group.start : group.stop].flatten())
        drawn = []
        for part in group:
            rng = np.random.default_rng(derive(order.seed, epoch, part, 2))
            drawn.append(rng.random((order.part, COLUMNS), dtype=np.float32)[slots])
        pixels = self.augment(batch.images, _to(np.concatenate(drawn), self.place.device))
        return (pixels - self.normalize.mean) / self.normalize.std, batch.targets

    def evaluation(self) -> Iterator[Batch]:
        for local in self.place.evaluation(len(self.val)):
            if not local:
                yield nothing(self.card, self.place.device)
                continue
            taken = slice(local.start, local.stop)
            yield Batch(self.normalize(self.val.images[taken]), self.val.targets[taken])

    def close(self) -> None:
        pass


class SyntheticFeed:
    """One random batch on the device again and again: the speed of everything but the data."""

    def __init__(self, card: ModelCard, place: Place) -> None:
        self.order = place.order(place.batch * SYNTHETIC_STEPS)
        self.place = place
        generator = torch.Generator().manual_seed(place.seed)
        images = torch.randn(self.order.local, *card.input_size, generator=generator)
        targets = torch.randint(len(card.classes), (self.order.local,), generator=generator)
        self.batch = Batch(images, targets).to(place.device)

    def parts(self, epoch: int, start: int) -> Iterator[Batch]:
        for _ in self.order.places(start):
            yield self.batch

    def evaluation(self) -> Iterator[Batch]:
        yield self.batch

    def close(self) -> None:
        pass


def nothing(card: ModelCard, device: torch.device, broken: tuple[str, ...] = ()) -> Batch:
    """One image that does not count: processes that shard a model must all run it equally often."""
    return Batch(torch.zeros(1, *card.input_size, device=device), torch.full((1,), NO_LABEL, device=device), broken)


def _groups(count: int, size: int) -> Iterator[range]:
    """`count` parts in groups of `size`, and one by one what is left, so that there are two shapes and no more.

    Where groups begin does not depend on where an epoch is entered: a resumed run computes the very same ones.
    """
    whole = count - count % size
    yield from (range(start, start + size) for start in range(0, whole, size))
    yield from (range(part, part + 1) for part in range(whole, count))


def _to(values: np.ndarray, device: torch.device) -> Tensor:
    tensor = torch.from_numpy(values)
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)
