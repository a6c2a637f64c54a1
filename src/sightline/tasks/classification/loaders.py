"""Loaders of training batches: worker processes, the memory of the device, or synthetic data to measure speed.

Every loader gives the local micro-batches of an epoch, normalized and on the device, and the local share of the images
to evaluate.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from sightline.data.loader import BrokenImages, ItemLoader, Items, chunks, stack
from sightline.data.order import Order, Placement, derive
from sightline.data.splits import Split
from sightline.tasks.card import ModelCard
from sightline.tasks.classification.augment import COLUMNS, BatchAugment
from sightline.tasks.classification.config import Config
from sightline.tasks.classification.transforms import Transform, eval_transform, train_transform, whole_transform
from sightline.tasks.metrics import NO_LABEL
from sightline.tasks.preprocess import at_size
from sightline.util.errors import FileError
from sightline.util.text import say

AHEAD = 256  # images augmented at a time, in whole micro-batches: few images would take their time to launch kernels
CHUNK = 256  # images decoded at a time to keep them
SYNTHETIC_STEPS = 100  # updates per epoch of synthetic data


class Batch(NamedTuple):
    """Images (B, C, H, W), and classes (B,) or, once they are mixed, probabilities (B, classes)."""

    images: Tensor
    targets: Tensor


class Kept(NamedTuple):
    """Images on the device as uint8 (N, C, H, W), classes (N,), and the shares of H and W that an image takes, (N, 2).

    Smaller images lie in the upper left corner.
    """

    images: Tensor
    targets: Tensor
    shares: Tensor


class Loader(Protocol):
    """What a loader gives."""

    order: Order

    def micro_batches(self, epoch: int, start: int) -> Iterator[Batch]:
        """The local micro-batches of an epoch from update `start` on."""

    def evaluation(self) -> Iterator[Batch]:
        """The local share of the images to evaluate."""

    def close(self) -> None:
        """End the loader processes, if there are any."""
        return None


class Normalize:
    """uint8 -> float with the mean and deviation of the channels, on the device of the images."""

    def __init__(self, card: ModelCard, device: torch.device) -> None:
        self.mean, self.std = (torch.tensor(v, device=device).view(1, -1, 1, 1) for v in (card.mean, card.std))

    def __call__(self, images: Tensor) -> Tensor:
        return self.pixels(images.float() / 255)

    def pixels(self, images: Tensor) -> Tensor:
        """The same for pixels from 0 to 1."""
        return (images - self.mean) / self.std


def training_card(config: Config, card: ModelCard) -> ModelCard:
    """The card at the size of training crops."""
    return card if config.data.train_size is None else at_size(card, config.data.train_size)


def pixel_items(
    split: Split, transform: Transform, card: ModelCard, replace: bool = False
) -> Items[tuple[Tensor, int]]:
    """The images of a split as uint8 (C, H, W), each with its class; `replace` as of `Items`."""
    return Items(len(split), partial(_read, split, transform, card.input_size[0]), replace)


def _read(split: Split, transform: Transform, channels: int, index: int, rng: random.Random) -> tuple[Tensor, int]:
    image = split.image(index, channels)
    seed = rng.getrandbits(32)  # timm's transforms draw from the global generators
    random.seed(seed)
    np.random.seed(seed)
    torch.random.default_generator.manual_seed(seed)
    return torch.from_numpy(np.ascontiguousarray(transform(image))), split.targets[index]


class WorkerLoader(Loader):
    """Images decoded and augmented by loader processes, normalized on the device."""

    def __init__(
        self, config: Config, card: ModelCard, splits: tuple[Split, Split], placement: Placement, broken: BrokenImages
    ) -> None:
        train, val = splits
        self.order = placement.order(len(train), config.augment.repeats)
        self.placement, self.card, self.images = placement, card, len(val)
        self.normalize, crops = Normalize(card, placement.device), training_card(config, card)
        items = (
            pixel_items(train, train_transform(crops, config.augment), crops, config.data.on_error == "skip"),
            pixel_items(val, eval_transform(card), card),
        )
        pin = placement.device.type == "cuda"
        self.train, self.val = (ItemLoader(each, config.data.workers, broken.add, stack, pin) for each in items)

    def micro_batches(self, epoch: int, start: int) -> Iterator[Batch]:
        for batch in self.train.batches(partial(self.order.keys, epoch, start)):
            assert batch is not None
            yield self._ready(*batch)

    def evaluation(self) -> Iterator[Batch]:
        for batch in self.val.batches(partial(self.placement.evaluation_keys, self.images)):
            yield no_image(self.card, self.placement.device) if batch is None else self._ready(*batch)

    def close(self) -> None:
        self.train.close()
        self.val.close()

    def _ready(self, images: Tensor, targets: Tensor) -> Batch:
        device = self.placement.device
        return Batch(self.normalize(images.to(device, non_blocking=True)), targets.to(device, non_blocking=True))


class DeviceLoader(Loader):
    """Images kept as uint8 on the device and augmented there in batches."""

    def __init__(
        self, config: Config, card: ModelCard, splits: tuple[Split, Split], placement: Placement, broken: BrokenImages
    ) -> None:
        self.placement, self.card = placement, card
        self.normalize = Normalize(card, placement.device)
        size = training_card(config, card).input_size[1:]
        self.augment = BatchAugment(config.augment, size, card.mean, placement.device)
        self.compiled: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None
        if config.model.compile not in (False, "graphs") and placement.device.type == "cuda":
            self.compiled = torch.compile(self.augment.__call__, dynamic=False)
        kept = replace(at_size(card, config.data.preload_size or card.input_size[1:]), crop_pct=1.0)
        whole = keeps_whole(config)
        self.train, self.val = (
            self.preload(split, *seen, config.data.workers, placement, broken)
            for split, seen in zip(splits, ((kept, whole), (card, False)), strict=True)
        )
        self.order = placement.order(len(self.train.targets), config.augment.repeats)

    def preload(
        self, split: Split, card: ModelCard, whole: bool, workers: int, placement: Placement, broken: BrokenImages
    ) -> Kept:
        """All readable images of a split."""
        return preload(split, card, whole, workers, placement, broken)

    def micro_batches(self, epoch: int, start: int) -> Iterator[Batch]:
        order, first = self.order, start * self.order.accumulate
        sequence = order.sequence(epoch)
        indices = torch.stack([sequence[positions] for positions in order.positions()]).to(self.placement.device)
        for group in _groups(len(indices), max(1, AHEAD // order.local)):
            if group.stop > first:
                images, targets = self._augmented(epoch, group, indices[group.start : group.stop].flatten())
                batches = zip(group, images.split(order.local), targets.split(order.local), strict=True)
                yield from (Batch(*batch) for number, *batch in batches if number >= first)

    def _augmented(self, epoch: int, group: range, indices: Tensor) -> Batch:
        """Several micro-batches, augmented at once from the random numbers of each."""
        order, slots = self.order, self.order.slots().numpy()
        drawn = []
        for number in group:
            rng = np.random.default_rng(derive(order.seed, epoch, number, 2))
            drawn.append(rng.random((order.micro_batch, COLUMNS), dtype=np.float32)[slots])
        uniform = torch.from_numpy(np.concatenate(drawn))
        device = self.placement.device
        uniform = (uniform.pin_memory() if device.type == "cuda" else uniform).to(device, non_blocking=True)
        pixels = self._change(self.train.images[indices], self.train.shares[indices], uniform)
        return Batch(self.normalize.pixels(pixels), self.train.targets[indices])

    def _change(self, images: Tensor, shares: Tensor, uniform: Tensor) -> Tensor:
        if self.compiled is not None:
            try:
                return self.compiled(images, shares, uniform)
            except Exception as error:
                self.compiled = None
                if self.placement.rank == 0:
                    say(f"compiling failed for augmentation ({type(error).__name__}); it runs in eager mode")
        return self.augment(images, shares, uniform)

    def evaluation(self) -> Iterator[Batch]:
        for local in self.placement.evaluation(len(self.val.targets)):
            images, targets, _ = (tensor[local.start : local.stop] for tensor in self.val)
            yield Batch(self.normalize(images), targets) if local else no_image(self.card, self.placement.device)


def keeps_whole(config: Config) -> bool:
    """Whether preloaded training images are whole: other crops than resized ones are taken from the middle."""
    return config.data.preload_whole and config.augment.crop == "resized"


def preload(
    split: Split, card: ModelCard, whole: bool, workers: int, placement: Placement, broken: BrokenImages
) -> Kept:
    """All readable images of a split at the size of the card; `whole` with what is outside of its crop."""
    fill = torch.tensor(card.mean).mul(255).round().clamp(0, 255).to(torch.uint8).view(-1, 1, 1)
    items = pixel_items(split, (whole_transform if whole else eval_transform)(card), card)
    parts: list[list[Tensor]] = []
    with closing(ItemLoader(items, workers, broken.add, partial(pack, fill))) as loader:
        for batch in loader.batches(partial(chunks, len(split), CHUNK)):
            parts += [[tensor.clone() for tensor in batch]] if batch else []  # out of the memory that loaders share
    if not parts:
        raise FileError(f"{split.title}: none of its {len(split)} images can be read; give others")
    images, targets, sizes = zip(*parts, strict=True)
    size = torch.cat(sizes)
    if placement.rank == 0:
        say(f"{split.title}: {len(size):,} images decoded")
    kept, start = _canvas(fill.to(placement.device), size), 0
    for part in images:
        kept[start : start + len(part), :, : part.shape[2], : part.shape[3]] = part.to(placement.device)
        start += len(part)
    shares = size / size.amax(0)
    return Kept(kept, torch.cat(targets).to(placement.device), shares.to(placement.device))


def pack(fill: Tensor, items: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor, Tensor] | None:
    """Images, their classes and their sizes (n, 2) as three tensors; None for no images."""
    if not items:
        return None
    size = torch.tensor([image.shape[1:] for image, _ in items])
    packed = _canvas(fill, size)
    for place, (image, _) in zip(packed, items, strict=True):
        place[:, : image.shape[1], : image.shape[2]] = image
    return packed, torch.tensor([target for _, target in items]), size


def _canvas(fill: Tensor, sizes: Tensor) -> Tensor:
    """(n, C, H, W) of the color `fill`, large enough for each of the sizes (n, 2)."""
    height, width = sizes.amax(0).tolist()
    return fill.expand(len(sizes), -1, height, width).clone()


class SyntheticLoader(Loader):
    """The same random batch every time, to measure the speed of everything but the data."""

    def __init__(self, card: ModelCard, placement: Placement) -> None:
        self.order = placement.order(placement.batch * SYNTHETIC_STEPS)
        generator = torch.Generator().manual_seed(placement.seed)
        images = torch.randn(self.order.local, *card.input_size, generator=generator)
        targets = torch.randint(len(card.classes), (self.order.local,), generator=generator)
        self.batch = Batch(images.to(placement.device), targets.to(placement.device))

    def micro_batches(self, epoch: int, start: int) -> Iterator[Batch]:
        for _ in self.order.positions(start):
            yield self.batch

    def evaluation(self) -> Iterator[Batch]:
        yield self.batch


def no_image(card: ModelCard, device: torch.device) -> Batch:
    """One image that does not count: processes that shard a model must all run it equally often."""
    return Batch(torch.zeros(1, *card.input_size, device=device), torch.full((1,), NO_LABEL, device=device))


def _groups(count: int, size: int) -> Iterator[range]:
    """`count` micro-batches in groups of `size`, the rest one by one, so that there are only two shapes.

    Groups do not depend on where an epoch is resumed, so a resumed run computes the same ones.
    """
    whole = count - count % size
    yield from (range(start, start + size) for start in range(0, whole, size))
    yield from (range(number, number + 1) for number in range(whole, count))
