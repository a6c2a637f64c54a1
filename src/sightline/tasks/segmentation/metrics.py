"""Scores of segmentation in two steps: counts of pixels, which add up, and scores of the sums."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sightline.tasks.segmentation.data import IGNORE


def confusion(predicted: Tensor, masks: Tensor, classes: int) -> Tensor:
    """(classes, classes) pixels: a row for every true class, a column for what it was taken for.

    Args:
        predicted: classes of pixels, any shape.
        masks: of the same shape; IGNORE counts for nothing.
    """
    counted = masks != IGNORE
    pairs = masks[counted].long() * classes + predicted[counted].long()
    return torch.bincount(pairs, minlength=classes * classes).view(classes, classes)


def iou(counts: Tensor) -> Tensor:
    """(classes,) intersection over union in percent; nan for a class that neither mask nor prediction has."""
    counts = counts.double()
    right = counts.diagonal()
    return 100 * right / (counts.sum(0) + counts.sum(1) - right)


def accuracy(counts: Tensor) -> Tensor:
    """(classes,) share of a class's pixels that were found, in percent; nan for a class without pixels."""
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

    def per_class(self, names: Iterable[str]) -> list[dict[str, Any]]:
        """A row for every class: name, pixels, IoU and accuracy in percent (None where there is none)."""
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
