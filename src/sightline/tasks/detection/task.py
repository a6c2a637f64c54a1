"""Detection as the engine trains it: data, model and loss put together."""

import random
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from sightline.data.order import Placement
from sightline.tasks.dense.loading import normalize
from sightline.tasks.dense.task import DenseTask
from sightline.tasks.detection.config import Augment, Data, Inference, Loss, Model
from sightline.tasks.detection.data import Split, Target, open_split
from sightline.tasks.detection.infer import in_place, to_coco
from sightline.tasks.detection.metrics import DetectionResult, score
from sightline.tasks.detection.model import build, has_masks
from sightline.tasks.detection.transforms import EvalTransform, TrainTransform
from sightline.util.device import autocast

Batch = tuple[list[Tensor], list[Target]]


class Detection(DenseTask):
    """A model, its training batches, their loss, and the images it is evaluated on.

    Args:
        data, model, augment, loss, test: sections of the configuration.
        placement: device and share of the work.
    """

    def __init__(
        self, data: Data, model: Model, augment: Augment, loss: Loss, test: Inference, placement: Placement
    ) -> None:
        self.masks = has_masks(model.head)
        train = open_split(data, "train", masks=self.masks)
        super().__init__(data, placement, train, open_split(data, "val", train, masks=self.masks))
        self.options = loss
        torch.manual_seed(placement.seed)
        built, self.card = build(model, data, test, train.classes, train.categories)
        self.model = built.to(placement.device)
        self.start(
            TrainReader(train, TrainTransform(data, augment), self.masks),
            EvalReader(self.val, EvalTransform(data.short, data.long)),
        )

    def batches(self, epoch: int, start: int) -> Iterator[Batch]:
        """The parts of an epoch's updates from update `start` on, ready for the model."""
        device = self.placement.device
        for items in self.training(epoch, start):
            images = [normalize(p.to(device), self.data.mean, self.data.std) for p, _ in items]
            targets = [{key: value.to(device) for key, value in target.items()} for _, target in items]
            yield images, targets

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The sum of the detector's losses, weighted."""
        losses = model(*batch)
        return sum(
            (self._weight(name) * value for name, value in losses.items()),
            torch.zeros((), device=self.placement.device),
        )

    def _weight(self, name: str) -> float:
        if "mask" in name:
            return self.options.masks
        return self.options.boxes if "box" in name or "bbox" in name else self.options.classes

    def evaluate(self, model: nn.Module, *, reduce: Any = None, **options: Any) -> DetectionResult:
        """Score the evaluation images, every one once over all processes."""
        return evaluate(model, self.evaluation(), self.val, self.data.mean, self.data.std, self.masks, **options)


@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: Iterable[list[tuple[int, Tensor]]],
    split: Split,
    mean: Iterable[float],
    std: Iterable[float],
    masks: bool,
    *,
    device: torch.device | str = "cpu",
    precision: str = "no",
    gather: Callable[[list[Any]], list[Any]] | None = None,
    on_batch: Callable[[int], None] | None = None,
) -> DetectionResult:
    """COCO's figures over a split; the mode of the model is restored afterwards.

    Args:
        model: a detector.
        batches: lists of (place in the split, uint8 image); images that are left out do not count.
        split: the truth.
        mean, std: of the channels.
        masks: whether masks are scored.
        precision: "no", "fp16" or "bf16" for autocast.
        gather: joins lists of all processes; every process must then call this.
        on_batch: called with the number of images after every batch.
    """
    place, training, start = torch.device(device), model.training, time.perf_counter()
    means, deviations = tuple(mean), tuple(std)
    rows: list[dict[str, Any]] = []
    seen: list[int] = []
    model.eval()
    try:
        for batch in batches:
            images = [normalize(pixels.to(place), means, deviations) for _, pixels in batch]
            with autocast(place, precision):
                answers = model(images) if images else []
            for (index, _), image, found in zip(batch, images, answers, strict=True):
                seen.append(index)
                entry = split.entries[index]
                placed = in_place(found, image.shape[-2:], entry.height, entry.width)
                rows += to_coco(placed, entry.number, split.categories)
            if on_batch is not None:
                on_batch(len(batch))
    finally:
        model.train(training)
    if gather is not None:
        rows, seen = gather(rows), gather(seen)
    return score(split.ground_truth(masks, seen), rows, masks, time.perf_counter() - start)


class TrainReader:
    """An image of a split with its target, transformed; goes to loader processes."""

    def __init__(self, split: Split, transform: TrainTransform, masks: bool) -> None:
        self.split, self.transform, self.masks = split, transform, masks

    def __call__(self, index: int, rng: random.Random) -> tuple[Tensor, Target]:
        return self.transform(self.split.image(index), self.split.target(index, self.masks), rng)


class EvalReader:
    """An image of a split at its evaluation size, with its place."""

    def __init__(self, split: Split, transform: EvalTransform) -> None:
        self.split, self.transform = split, transform

    def __call__(self, index: int, rng: random.Random) -> tuple[int, Tensor]:
        return index, self.transform(self.split.image(index))
