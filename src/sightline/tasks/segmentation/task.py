"""Segmentation as the engine trains it: data, model and loss."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sightline.data.order import Placement
from sightline.tasks.dense.card import DenseCard
from sightline.tasks.dense.task import DenseTask
from sightline.tasks.dense.transforms import normalize, pair
from sightline.tasks.segmentation.config import Config
from sightline.tasks.segmentation.data import IGNORE, open_split
from sightline.tasks.segmentation.metrics import Item, PixelScorer
from sightline.tasks.segmentation.model import Head, Segmenter
from sightline.tasks.segmentation.transforms import TrainTransform
from sightline.util.errors import InputError

Batch = tuple[Tensor, Tensor]  # normalized images (B, 3, h, w); masks (B, h, w)


class Segmentation(DenseTask[Tensor, Item, Tensor]):
    """A model, its training batches, their loss, and the images it is evaluated on."""

    def __init__(self, config: Config, placement: Placement) -> None:
        data, model, self.options = config.data, config.model, config.loss
        auxiliary = config.loss.auxiliary > 0
        train = open_split(data, "train")
        val = open_split(data, "val", train.labels)
        head = Head(
            name=model.head, channels=model.channels, drop=model.drop, auxiliary=auxiliary, short=data.short,
            long=data.long, test=config.test,
        )  # fmt: skip
        card = DenseCard.of("segmentation", model, data, train.classes, pair(data.size), head)
        super().__init__(data, placement, train, val, card, TrainTransform(data, config.augment))
        if self.order.local == 1 and (model.head == "upernet" or auxiliary):
            raise InputError(
                f"batch.size={placement.batch} gives one image per process and micro-batch, but batch norm needs two; "
                f"give at least {2 * placement.ranks * placement.accumulate}"
            )
        torch.manual_seed(placement.seed)
        self.model = Segmenter(model, len(train.classes), auxiliary).to(placement.device)

    def batches(self, epoch: int, start: int) -> Iterator[Batch]:
        """The micro-batches of an epoch from update `start` on, ready for the model."""
        for items in self.items(epoch, start):
            images, masks = (torch.stack(parts).to(self.placement.device) for parts in zip(*items, strict=True))
            yield normalize(images, self.card.mean, self.card.std), masks.long()

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

    def scorer(self, device: torch.device) -> PixelScorer:
        return PixelScorer(self.card, self.card.head.test, device)
