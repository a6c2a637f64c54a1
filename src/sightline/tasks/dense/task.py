"""What segmentation and detection share: the task that the engine trains, opening and evaluating a model."""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from PIL import Image
from torch import Tensor, nn

from sightline.data.loader import BrokenImages, ItemLoader, Items, chunks
from sightline.data.order import Placement
from sightline.models.weights.reader import Weights
from sightline.tasks.base import SKIP, EvalOptions, Loaded, Scores, Task
from sightline.tasks.create import restore
from sightline.tasks.dense.card import DenseCard, H
from sightline.tasks.dense.config import DenseData
from sightline.tasks.dense.data import Split
from sightline.tasks.dense.transforms import EvalTransform, InferenceTransform
from sightline.tasks.evaluation import Scorer, run_scorer
from sightline.util.errors import InputError

Batch = TypeVar("Batch")
Target = TypeVar("Target")  # annotations as read
Item = TypeVar("Item")  # an example, augmented
D = TypeVar("D", bound=DenseData)
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
        pack: makes a batch of examples, of which there may be none, in the loader processes.
    """

    card: DenseCard[Any]

    def __init__(
        self, data: DenseData, placement: Placement, train: Split[Target, Truth], val: Split[Target, Truth],
        card: DenseCard[Any], transform: Augmented[Target, Item], pack: Callable[[list[Item]], Any] = list,
    ) -> None:  # fmt: skip
        self.placement, self.images, self.card = placement, len(val), card
        self.order = placement.order(len(train))
        self.notes = (*train.notes, *val.notes)
        skipped = BrokenImages(data.on_error)
        self.broken = skipped.messages
        items = Items(len(train), partial(_read, train.read, transform), replace=data.on_error == "skip")
        self.train_loader = ItemLoader(items, data.workers, skipped.add, pack)
        self.eval_loader = eval_loader(val, card, data.workers, skipped)

    def __len__(self) -> int:
        """Images to evaluate."""
        return self.images

    def packed(self, epoch: int, start: int) -> Iterator[Any]:
        """The micro-batches of an epoch as `pack` makes them, from update `start` on."""
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


def read_dense(metadata: Mapping[str, str], head: type[H]) -> tuple[DenseCard[H], InferenceTransform]:
    """The card in the metadata of a file, and its transform."""
    card = DenseCard.read(metadata, head)
    return card, InferenceTransform(card.head.short, card.head.long, card.mean, card.std)


def open_dense(weights: Weights, head: type[H], make: Callable[[DenseCard[H]], nn.Module]) -> Loaded:
    """The model in a file with a card."""
    card, transform = read_dense(weights.metadata, head)
    model = restore(card, weights.state, lambda: make(card))
    return Loaded(model, card, transform, card.classes, weights.path, card.task)


def eval_section(kind: type[D], data: str | None, section: object, options: EvalOptions) -> D:
    """The section `data` of an evaluation: that of the run or the defaults, with what the options change.

    Raises:
        InputError: no data are given.
    """
    if section is None and data is None:
        raise InputError("data: missing; give the images to evaluate on (only a run folder records its own)")
    section = section or kind()
    assert isinstance(section, kind), "a run has the configuration of its task"
    return replace(
        section, path=data or section.path, val_split=options.split or section.val_split, limit=options.limit,
        on_error=options.on_error, workers=options.workers,
    )  # fmt: skip


def evaluate_split(
    loaded: Loaded, split: Split[Any, Truth], scorer: DenseScorer[H, tuple[Tensor, Truth]], options: EvalOptions
) -> dict[str, Scores]:
    """The result of `sightline.evaluate`, under the one set of labels that these tasks have."""
    if split.classes != loaded.classes:
        raise InputError(f"data: the classes of {split.title} are not those of {loaded.path}; give the same classes")
    broken = BrokenImages(options.on_error, SKIP)
    loader = eval_loader(split, scorer.card, options.workers, broken)
    batches = loader.batches(partial(chunks, len(split), options.batch_size))
    with closing(loader):
        scores = run_scorer(scorer, loaded.model, batches, options, len(split), "images")
    return {"usual": replace(scores, data=split.title, broken=tuple(broken.messages), notes=split.notes)}


def _read(
    read: Callable[[int], tuple[Image.Image, Target]], transform: Augmented[Target, Item], index: int,
    rng: random.Random,
) -> Item:  # fmt: skip
    """What loader processes run."""
    return transform(*read(index), rng)
