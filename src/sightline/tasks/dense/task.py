"""Training tasks of segmentation and detection: order, loaders, images that could not be used."""

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from PIL import Image
from torch import Tensor

from sightline.data.loader import BrokenImages, ItemLoader, Items
from sightline.data.order import Placement
from sightline.tasks.base import Scores, Task
from sightline.tasks.dense.card import DenseCard, H
from sightline.tasks.dense.config import DenseData
from sightline.tasks.dense.data import Split
from sightline.tasks.dense.transforms import EvalTransform
from sightline.tasks.evaluation import Scorer

Batch = TypeVar("Batch")
Target = TypeVar("Target")  # annotations as read
Item = TypeVar("Item")  # an example, augmented
Truth = TypeVar("Truth")  # what predictions are compared with
Augmented = Callable[[Image.Image, Target, random.Random], Item]


class DenseScorer(Scorer[list[Item], Scores], Generic[H, Item]):
    """Scores images, which may differ in size, as the card of the model says."""

    def __init__(self, card: DenseCard[H], device: torch.device) -> None:
        super().__init__(device)
        self.card = card


class DenseTask(Task[Batch, list[tuple[Tensor, Truth]]], Generic[Batch, Target, Item, Truth]):
    """Images to train on and to evaluate, read by loader processes; a subclass adds the model and the loss.

    Args:
        data: section of the configuration.
        placement: device and share of the work.
        train, val: splits.
        card: of the model.
        transform: augments an example.
    """

    card: DenseCard[Any]

    def __init__(
        self, data: DenseData, placement: Placement, train: Split[Target, Truth], val: Split[Target, Truth],
        card: DenseCard[Any], transform: Augmented[Target, Item],
    ) -> None:  # fmt: skip
        self.placement, self.images, self.card = placement, len(val), card
        self.order = placement.order(len(train))
        self.notes = (*train.notes, *val.notes)
        skipped = BrokenImages(data.on_error)
        self.broken = skipped.messages
        items = Items(len(train), partial(_read, train.read, transform), replace=data.on_error == "skip")
        self.train_loader = ItemLoader(items, data.workers, skipped.add, list)
        self.eval_loader = eval_loader(val, card, data.workers, skipped)

    def __len__(self) -> int:
        """Images to evaluate."""
        return self.images

    def items(self, epoch: int, start: int) -> Iterator[list[Item]]:
        """The items of an epoch's micro-batches, from update `start` on."""
        return self.train_loader.batches(partial(self.order.keys, epoch, start))

    def evaluation(self) -> Iterator[list[tuple[Tensor, Truth]]]:
        """This process's images to evaluate, in batches; those that cannot be used are left out."""
        return self.eval_loader.batches(partial(self.placement.evaluation_keys, self.images))

    def close(self) -> None:
        """End the loader processes."""
        self.train_loader.close()
        self.eval_loader.close()


def eval_loader(
    split: Split[Any, Truth], card: DenseCard[Any], workers: int, broken: BrokenImages
) -> ItemLoader[tuple[Tensor, Truth], list[tuple[Tensor, Truth]]]:
    """Loads images at their evaluation size, with the truth as in the file."""
    reader = partial(_read, split.read_eval, EvalTransform(card.head.short, card.head.long).beside)
    return ItemLoader(Items(len(split), reader, False), workers, broken.add, list)


def _read(
    read: Callable[[int], tuple[Image.Image, Target]], transform: Augmented[Target, Item], index: int,
    rng: random.Random,
) -> Item:  # fmt: skip
    """What loader processes run."""
    return transform(*read(index), rng)
