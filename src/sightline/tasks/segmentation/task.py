"""Segmentation as the engine trains it: data, model and loss put together."""

import random
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sightline.data.order import Placement
from sightline.tasks.dense.loading import normalize
from sightline.tasks.dense.task import DenseTask
from sightline.tasks.segmentation.config import Augment, Data, Inference, Loss, Model
from sightline.tasks.segmentation.data import IGNORE, Split, open_split
from sightline.tasks.segmentation.evaluate import Item, evaluate
from sightline.tasks.segmentation.metrics import SegmentationResult
from sightline.tasks.segmentation.model import build
from sightline.tasks.segmentation.transforms import EvalTransform, TrainTransform

Batch = tuple[Tensor, Tensor]  # images (B, 3, h, w), normalised; masks (B, h, w)


class Segmentation(DenseTask):
    """A model, its training batches, their loss, and the images it is evaluated on.

    Args:
        data, model, augment, loss, test: sections of the configuration.
        placement: device and share of the work.
    """

    def __init__(
        self, data: Data, model: Model, augment: Augment, loss: Loss, test: Inference, placement: Placement
    ) -> None:
        train = open_split(data, "train")
        super().__init__(data, placement, train, open_split(data, "val", train.labels))
        self.options, self.test = loss, test
        if self.order.local == 1 and (model.head == "upernet" or loss.auxiliary):
            raise ValueError(
                f"batch.size={placement.batch} gives one image per process and micro-batch, but batch norm needs two; "
                f"give at least {2 * placement.ranks * placement.accumulate}"
            )
        torch.manual_seed(placement.seed)
        built, self.card = build(model, data, asdict(test), train.classes, loss.auxiliary > 0)
        self.model = built.to(placement.device)
        self.start(Reader(train, TrainTransform(data, augment)), Reader(self.val, EvalTransform(data), train=False))

    def batches(self, epoch: int, start: int) -> Iterator[Batch]:
        """The parts of an epoch's updates from update `start` on, ready for the model."""
        device = self.placement.device
        for items in self.training(epoch, start):
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
            model, self.evaluation(), len(self.card.classes), self.test, self.data.size, self.data.mean, self.data.std,
            **options,
        )  # fmt: skip


class Reader:
    """An item of a split, transformed; goes to loader processes."""

    def __init__(self, split: Split, transform: Any, train: bool = True) -> None:
        self.split, self.transform, self.train = split, transform, train

    def __call__(self, index: int, rng: random.Random) -> Item:
        image, mask = self.split.read(index)
        return self.transform(image, mask, rng) if self.train else self.transform(image, mask)
