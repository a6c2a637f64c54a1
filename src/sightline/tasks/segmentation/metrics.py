"""Scores of segmentation in two steps: counts of pixels, which add up, and scores of the sums."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sightline.tasks.base import Row
from sightline.tasks.segmentation.data import IGNORE


def confusion(predicted: Tensor, masks: Tensor, classes: int) -> Tensor:
    """(classes, classes) pixel counts: a row per true class, a column per predicted class.

    Args:
        predicted: classes of pixels, any shape.
        masks: true classes, of the same shape; pixels of IGNORE do not count.
    """
    counted = masks != IGNORE
    pairs = masks[counted].long() * classes + predicted[counted].long()
    return torch.bincount(pairs, minlength=classes * classes).view(classes, classes)


def iou(counts: Tensor) -> Tensor:
    """(classes,) intersection over union in percent; nan for a class in neither mask nor prediction."""
    counts = counts.double()
    right = counts.diagonal()
    return 100 * right / (counts.sum(0) + counts.sum(1) - right)


def accuracy(counts: Tensor) -> Tensor:
    """(classes,) recall of each class in percent; nan for a class without pixels."""
    counts = counts.double()
    return 100 * counts.diagonal() / counts.sum(1)


def scores(counts: Tensor) -> dict[str, float]:
    """`miou`, `macc` and `aacc` in percent: means over the classes that occur, and the share of all pixels."""
    return {
        "miou": float(iou(counts).nanmean()),
        "macc": float(accuracy(counts).nanmean()),
        "aacc": float(100 * counts.double().diagonal().sum() / counts.double().sum()),
    }


@dataclass(frozen=True)
class SegmentationResult:
    """The counts over a whole set, on the CPU; iterating gives `(name, value)`."""

    confusion: Tensor
    images: int
    seconds: float

    @property
    def scores(self) -> dict[str, float]:
        return scores(self.confusion)

    def __iter__(self) -> Iterator[tuple[str, float]]:
        yield from self.scores.items()

    def per_class(self, names: Sequence[str]) -> list[Row]:
        """One row per class: name, pixels, IoU and accuracy in percent, or None."""
        columns = zip(
            names,
            self.confusion.sum(1).tolist(),
            iou(self.confusion).tolist(),
            accuracy(self.confusion).tolist(),
            strict=True,
        )
        return [{"class": n, "pixels": p, "iou": _finite(i), "accuracy": _finite(a)} for n, p, i, a in columns]


def _finite(value: float) -> float | None:
    return round(value, 4) if value == value else None
