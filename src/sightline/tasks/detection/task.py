"""Detection as the engine trains it: data, model and loss."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from sightline.data.order import Placement
from sightline.tasks.dense.card import DenseCard
from sightline.tasks.dense.task import DenseTask
from sightline.tasks.dense.transforms import normalize
from sightline.tasks.detection.config import Config
from sightline.tasks.detection.data import Target, open_split
from sightline.tasks.detection.metrics import ObjectScorer
from sightline.tasks.detection.model import Detector, Head, has_masks
from sightline.tasks.detection.transforms import TrainTransform

Batch = tuple[list[Tensor], list[Target]]


class Detection(DenseTask[Target, tuple[Tensor, Target], int]):
    """A model, its training batches, their loss, and the images it is evaluated on."""

    def __init__(self, config: Config, placement: Placement) -> None:
        data, model, test, self.weights = config.data, config.model, config.test, config.loss
        masks = has_masks(model.head)
        train = open_split(data, "train", masks=masks)
        self.val = open_split(data, "val", train, masks=masks)
        head = Head(
            name=model.head, channels=model.channels, anchor=model.anchor, categories=train.categories,
            short=data.short, long=data.long, score=test.score, nms=test.nms, detections=test.detections,
        )  # fmt: skip
        card = DenseCard.of("detection", model, data, train.classes, (data.short, data.long), head)
        super().__init__(data, placement, train, self.val, card, TrainTransform(data, config.augment))
        torch.manual_seed(placement.seed)
        self.model = Detector(model, len(train.classes), test).to(placement.device)

    def batches(self, epoch: int, start: int) -> Iterator[Batch]:
        """The micro-batches of an epoch from update `start` on, ready for the model."""
        device = self.placement.device
        for items in self.items(epoch, start):
            images = [normalize(pixels.to(device), self.card.mean, self.card.std) for pixels, _ in items]
            targets = [{key: value.to(device) for key, value in target.items()} for _, target in items]
            yield images, targets

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The weighted sum of the detector's losses."""
        losses = model(*batch)
        zero = torch.zeros((), device=self.placement.device)
        return sum((self._weight(name) * value for name, value in losses.items()), zero)

    def _weight(self, name: str) -> float:
        if "mask" in name:
            return self.weights.masks
        return self.weights.boxes if "box" in name else self.weights.classes

    def scorer(self, device: torch.device) -> ObjectScorer:
        return ObjectScorer(self.val, self.card, device)
