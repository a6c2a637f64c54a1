"""Detection as the engine trains it: data, model and loss."""

import random
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from sightline.data.order import Placement
from sightline.tasks.base import Advance
from sightline.tasks.dense.task import DenseTask
from sightline.tasks.dense.transforms import EvalTransform, normalize
from sightline.tasks.detection.config import Augment, Data, Inference, Loss, Model
from sightline.tasks.detection.data import Split, Target, open_split
from sightline.tasks.detection.evaluate import Item, evaluate
from sightline.tasks.detection.metrics import DetectionResult
from sightline.tasks.detection.model import build, has_masks
from sightline.tasks.detection.transforms import TrainTransform

TrainItem = tuple[Tensor, Target]
Batch = tuple[list[Tensor], list[Target]]


class Detection(DenseTask[TrainItem, Item]):
    """A model, its training batches, their loss, and the images it is evaluated on.

    Args:
        data, model, augment, loss, test: sections of the configuration.
        placement: device and share of the work.
    """

    def __init__(
        self, data: Data, model: Model, augment: Augment, loss: Loss, test: Inference, placement: Placement
    ) -> None:
        masks = has_masks(model.head)
        train = open_split(data, "train", masks=masks)
        self.val = open_split(data, "val", train, masks=masks)
        super().__init__(data, placement, train, self.val)
        self.data, self.options = data, loss
        torch.manual_seed(placement.seed)
        built, self.card = build(model, data, test, train.classes, train.categories)
        self.model = built.to(placement.device)
        self.start(
            TrainReader(train, TrainTransform(data, augment), masks), EvalReader(self.val, data.short, data.long)
        )

    def batches(self, epoch: int, start: int) -> Iterator[Batch]:
        """The micro-batches of an epoch from update `start` on, ready for the model."""
        device = self.placement.device
        for items in self.training(epoch, start):
            images = [normalize(pixels.to(device), self.data.mean, self.data.std) for pixels, _ in items]
            targets = [{key: value.to(device) for key, value in target.items()} for _, target in items]
            yield images, targets

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The weighted sum of the detector's losses."""
        losses = model(*batch)
        zero = torch.zeros((), device=self.placement.device)
        return sum((self._weight(name) * value for name, value in losses.items()), zero)

    def _weight(self, name: str) -> float:
        if "mask" in name:
            return self.options.masks
        return self.options.boxes if "box" in name else self.options.classes

    def evaluate(
        self,
        model: nn.Module,
        *,
        device: torch.device,
        precision: str,
        reduce: Callable[[Tensor], Tensor] | None = None,
        gather: Callable[[list[object]], list[object]] | None = None,
        on_batch: Advance | None = None,
    ) -> DetectionResult:
        """Score the evaluation images, each once over all processes."""
        return evaluate(
            model, self.evaluation(), self.val, self.card, device=device, precision=precision, gather=gather,
            on_batch=on_batch,
        )  # fmt: skip


class TrainReader:
    """An image and its target, augmented; runs in loader processes."""

    def __init__(self, split: Split, transform: TrainTransform, masks: bool) -> None:
        self.split, self.transform, self.masks = split, transform, masks

    def __call__(self, index: int, rng: random.Random) -> TrainItem:
        return self.transform(self.split.image(index), self.split.target(index, self.masks), rng)


class EvalReader:
    """An image at its evaluation size, with its index."""

    def __init__(self, split: Split, short: int, long: int) -> None:
        self.split, self.transform = split, EvalTransform(short, long)

    def __call__(self, index: int, rng: random.Random) -> Item:
        return index, self.transform(self.split.image(index))
