"""Segmentation as the engine trains it: data, model and loss."""

import random
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sightline.data.order import Placement
from sightline.tasks.base import Advance
from sightline.tasks.dense.task import DenseTask
from sightline.tasks.dense.transforms import EvalTransform, normalize
from sightline.tasks.segmentation.config import Augment, Data, Inference, Loss, Model
from sightline.tasks.segmentation.data import IGNORE, Split, open_split
from sightline.tasks.segmentation.evaluate import Item, evaluate
from sightline.tasks.segmentation.metrics import SegmentationResult
from sightline.tasks.segmentation.model import build
from sightline.tasks.segmentation.transforms import TrainTransform
from sightline.util.errors import InputError

Batch = tuple[Tensor, Tensor]  # normalized images (B, 3, h, w); masks (B, h, w)


class Segmentation(DenseTask[Item, Item]):
    """A model, its training batches, their loss, and the images it is evaluated on.

    Args:
        data, model, augment, loss, test: sections of the configuration.
        placement: device and share of the work.
    """

    def __init__(
        self, data: Data, model: Model, augment: Augment, loss: Loss, test: Inference, placement: Placement
    ) -> None:
        train = open_split(data, "train")
        val = open_split(data, "val", train.labels)
        super().__init__(data, placement, train, val)
        self.data, self.options = data, loss
        if self.order.local == 1 and (model.head == "upernet" or loss.auxiliary):
            raise InputError(
                f"batch.size={placement.batch} gives one image per process and micro-batch, but batch norm needs two; "
                f"give at least {2 * placement.ranks * placement.accumulate}"
            )
        torch.manual_seed(placement.seed)
        built, self.card = build(model, data, test, train.classes, loss.auxiliary > 0)
        self.model = built.to(placement.device)
        self.start(TrainReader(train, TrainTransform(data, augment)), EvalReader(val, data.short, data.long))

    def batches(self, epoch: int, start: int) -> Iterator[Batch]:
        """The micro-batches of an epoch from update `start` on, ready for the model."""
        device = self.placement.device
        for items in self.training(epoch, start):
            images = torch.stack([image for image, _ in items]).to(device, non_blocking=True)
            masks = torch.stack([mask for _, mask in items]).to(device, non_blocking=True)
            yield normalize(images, self.data.mean, self.data.std), masks.long()

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean cross entropy over pixels that are not ignored, with that of the auxiliary head."""
        images, masks = batch
        logits, auxiliary = model(images)
        total = self._cross_entropy(logits, masks)
        if auxiliary is not None:
            total = total + self.options.auxiliary * self._cross_entropy(auxiliary, masks)
        return total

    def _cross_entropy(self, logits: Tensor, masks: Tensor) -> Tensor:
        """0, not NaN, if every pixel of the batch is ignored."""
        smoothing = self.options.smoothing
        summed = F.cross_entropy(logits.float(), masks, ignore_index=IGNORE, reduction="sum", label_smoothing=smoothing)
        return summed / (masks != IGNORE).sum().clamp(min=1)

    def evaluate(
        self,
        model: nn.Module,
        *,
        device: torch.device,
        precision: str,
        reduce: Callable[[Tensor], Tensor] | None = None,
        gather: Callable[[list[object]], list[object]] | None = None,
        on_batch: Advance | None = None,
    ) -> SegmentationResult:
        """Score the evaluation images, each once over all processes."""
        return evaluate(
            model, self.evaluation(), self.card, device=device, precision=precision, reduce=reduce, on_batch=on_batch
        )


class TrainReader:
    """An image and its mask, augmented; runs in loader processes."""

    def __init__(self, split: Split, transform: TrainTransform) -> None:
        self.split, self.transform = split, transform

    def __call__(self, index: int, rng: random.Random) -> Item:
        return self.transform(*self.split.read(index), rng)


class EvalReader:
    """An image at its evaluation size, and its mask as in the file."""

    def __init__(self, split: Split, short: int | None, long: int) -> None:
        self.split, self.transform = split, EvalTransform(short, long)

    def __call__(self, index: int, rng: random.Random) -> Item:
        image, mask = self.split.read(index)
        return self.transform(image), torch.from_numpy(mask)
