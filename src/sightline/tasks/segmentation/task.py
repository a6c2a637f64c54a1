"""Segmentation as the engine trains it: data, model and loss put together."""

import random
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sightline.tasks.classification.samples import close_loader
from sightline.tasks.dense.loading import Items, Keys, Loaded, make_loader, normalize
from sightline.tasks.dense.reporting import Broken
from sightline.tasks.order import Key, Place
from sightline.tasks.segmentation.config import Augment, Data, Inference, Loss, Model
from sightline.tasks.segmentation.data import IGNORE, Split, open_split
from sightline.tasks.segmentation.evaluate import Item, evaluate
from sightline.tasks.segmentation.metrics import SegmentationResult
from sightline.tasks.segmentation.model import build
from sightline.tasks.segmentation.transforms import EvalTransform, TrainTransform

Batch = tuple[Tensor, Tensor]  # images (B, 3, h, w), normalised; masks (B, h, w)


class Segmentation:
    """A model, its training batches, their loss, and the images it is evaluated on.

    Args:
        data, model, augment, loss, test: sections of the configuration.
        place: device and share of the work.

    Attributes:
        model: in training mode on the device, not yet compiled or wrapped.
        card: what a file of its weights says of itself.
        order: of the training images.
        broken: what was wrong with images that could not be used, every one once.
        notes: what a user should know of the data, a line each.
    """

    def __init__(self, data: Data, model: Model, augment: Augment, loss: Loss, test: Inference, place: Place) -> None:
        self.data, self.options, self.test, self.place = data, loss, test, place
        train = open_split(data, "train")
        self.val = open_split(data, "val", train.labels)
        self.order = place.order(len(train))
        if self.order.local == 1 and (model.head == "upernet" or loss.auxiliary):
            raise ValueError(
                f"batch.size={place.batch} gives one image a process and part, but batch norm needs two; give at least "
                f"{2 * place.ranks * place.parts}"
            )
        torch.manual_seed(place.seed)
        built, self.card = build(model, data, asdict(test), train.classes, loss.auxiliary > 0)
        self.model: nn.Module = built.to(place.device)
        self.notes = (*train.notes, *self.val.notes)
        self._broken = Broken(data.on_error)
        self.train_keys, self.eval_keys = Keys(), Keys()
        skip = data.on_error == "skip"
        self.train_loader = make_loader(
            Items(len(train), Reader(train, TrainTransform(data, augment)), skip), self.train_keys, data.workers
        )
        self.eval_loader = make_loader(
            Items(len(self.val), Reader(self.val, EvalTransform(data), train=False), False),
            self.eval_keys,
            data.workers,
        )

    @property
    def broken(self) -> dict[str, None]:
        return self._broken.messages

    def __len__(self) -> int:
        """Images to evaluate."""
        return len(self.val)

    def batches(self, epoch: int, start: int) -> Iterator[Batch]:
        """The parts of an epoch's updates from update `start` on, ready for the model."""
        self.train_keys.keys = partial(self.order.keys, epoch, start)
        for loaded in self.train_loader:
            items, device = self._broken.training(loaded), self.place.device
            images = torch.stack([image for image, _ in items]).to(device, non_blocking=True)
            masks = torch.stack([mask for _, mask in items]).to(device, non_blocking=True)
            yield normalize(images, self.data.mean, self.data.std), masks.long()

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean cross entropy of the pixels that count, with that of the auxiliary head."""
        images, masks = batch
        logits, auxiliary = model(images)
        total = self._cross_entropy(logits, masks)
        if auxiliary is not None:
            total = total + self.options.auxiliary * self._cross_entropy(auxiliary, masks)
        return total

    def _cross_entropy(self, logits: Tensor, masks: Tensor) -> Tensor:
        """0 where nothing in the batch counts: a mean over no pixels is not a number."""
        smoothing = self.options.smoothing
        summed = F.cross_entropy(logits.float(), masks, ignore_index=IGNORE, reduction="sum", label_smoothing=smoothing)
        return summed / (masks != IGNORE).sum().clamp(min=1)

    def evaluate(self, model: nn.Module, *, gather: Any = None, **options: Any) -> SegmentationResult:
        """Score the evaluation images, every one once over all processes; `options` are those of `evaluate`."""
        return evaluate(
            model, self._items(), len(self.card.classes), self.test, self.data.size, self.data.mean, self.data.std,
            **options,
        )  # fmt: skip

    def _items(self) -> Iterator[list[Item]]:
        self.eval_keys.keys = self._eval_keys
        loaded: Loaded
        for loaded in self.eval_loader:
            self._broken.note(loaded)
            yield loaded.items

    def _eval_keys(self) -> Iterator[list[Key]]:
        for local in self.place.evaluation(len(self.val)):
            yield [(index, 0) for index in local]

    def close(self) -> None:
        """End what was started to load images."""
        close_loader(self.train_loader)
        close_loader(self.eval_loader)


class Reader:
    """An item of a split, transformed; goes to loader processes."""

    def __init__(self, split: Split, transform: Any, train: bool = True) -> None:
        self.split, self.transform, self.train = split, transform, train

    def __call__(self, index: int, rng: random.Random) -> Item:
        image, mask = self.split.read(index)
        return self.transform(image, mask, rng) if self.train else self.transform(image, mask)
