"""Scores of segmentation in two steps: counts of pixels, which add up, and scores of the sums."""

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor, nn

from sightline.tasks.base import Scores
from sightline.tasks.dense.task import DenseScorer
from sightline.tasks.dense.transforms import normalize
from sightline.tasks.evaluation import Gather, Reduce, class_rows
from sightline.tasks.segmentation.config import Inference
from sightline.tasks.segmentation.data import IGNORE
from sightline.tasks.segmentation.infer import likeliest
from sightline.tasks.segmentation.model import Card, Head

Item = tuple[Tensor, Tensor]  # uint8 image (3, h, w), mask (H, W)


def confusion(predicted: Tensor, masks: Tensor, classes: int) -> Tensor:
    """(classes, classes) pixel counts: a row per true class, a column per predicted class.

    Args:
        predicted: classes of pixels, any shape.
        masks: true classes, of the same shape; pixels of IGNORE do not count.
    """
    counted = masks != IGNORE
    pairs = masks[counted].long() * classes + predicted[counted].long()
    return torch.bincount(pairs, minlength=classes * classes).view(classes, classes)


def score(counts: Tensor, names: Sequence[str], images: int, seconds: float = 0.0) -> Scores:
    """`miou`, `macc` and `aacc` in percent: means over the classes that occur, and the share of all pixels.

    By class: pixels, intersection over union (nan for a class in neither mask nor prediction) and accuracy, its recall
    (nan for a class without pixels).
    """
    pixels, right = counts.sum(1), counts.diagonal().double()
    iou = 100 * right / (counts.sum(0) + pixels - right)
    accuracy = 100 * right / pixels
    values = {"miou": iou.nanmean(), "macc": accuracy.nanmean(), "aacc": 100 * right.sum() / pixels.sum()}
    rows = class_rows(names, {"pixels": pixels.tolist(), "iou": iou.tolist(), "accuracy": accuracy.tolist()})
    return Scores({name: float(value) for name, value in values.items()}, rows, counts, images, seconds)


class PixelScorer(DenseScorer[Head, Item]):
    """Counts the pixels of images, which may differ in size; `test` is how, by default as the card says."""

    def __init__(self, card: Card, device: torch.device, test: Inference | None = None) -> None:
        super().__init__(card, device)
        self.test = test or card.head.test
        self.counts = torch.zeros(len(card.classes), len(card.classes), dtype=torch.long, device=device)
        self.images = torch.zeros((), dtype=torch.long, device=device)

    def add(self, model: nn.Module, items: list[Item]) -> int:
        """Images in a row that have the same sizes go through the model together."""
        for _, group in groupby(items, lambda item: [part.shape for part in item]):
            images, masks = (torch.stack(parts).to(self.device) for parts in zip(*group, strict=True))
            pixels = normalize(images, self.card.mean, self.card.std)
            predicted = likeliest(model, pixels, self.test, self.card.input_size[1:], masks.shape[-2:])
            self.counts += confusion(predicted, masks, len(self.card.classes))
            self.images += len(images)
        return len(items)

    def result(self, reduce: Reduce, gather: Gather, seconds: float) -> Scores:
        return score(reduce(self.counts).cpu(), self.card.classes, int(reduce(self.images)), seconds)
