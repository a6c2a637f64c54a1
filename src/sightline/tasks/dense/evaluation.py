"""Evaluation of a segmenter or detector, after every epoch of training and by `sightline eval`."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from sightline.tasks.base import Advance, Row
from sightline.tasks.dense.card import DenseCard, H
from sightline.util.device import autocast

Item = TypeVar("Item")
Reduce = Callable[[Tensor], Tensor]
Gather = Callable[[list[Any]], list[Any]]


@dataclass(frozen=True)
class DenseResult:
    """Scores over a whole set; iterating gives `(name, value)`.

    Args:
        values: in percent.
        by_class: one value per class under every name, nan if it has none.
        images, seconds: of the evaluation.
        confusion: pixel counts (classes, classes) on the CPU, of segmentation.
    """

    values: Mapping[str, float]
    by_class: Mapping[str, list[float]]
    images: int
    seconds: float = 0.0
    confusion: Tensor | None = None

    def __iter__(self) -> Iterator[tuple[str, float]]:
        yield from self.values.items()

    def per_class(self, names: Sequence[str]) -> list[Row]:
        """One row per class: its name, and the values or None."""
        columns = {key: [round(v, 4) if v == v else None for v in column] for key, column in self.by_class.items()}
        return [{"class": name, **{key: columns[key][i] for key in columns}} for i, name in enumerate(names)]


class Scorer(ABC, Generic[H, Item]):
    """Compares what a model finds in images with the truth, batch by batch.

    Args:
        card: of the model: classes, mean, standard deviation, and how images are evaluated.
        device: of the model.
    """

    def __init__(self, card: DenseCard[H], device: torch.device) -> None:
        self.card, self.device = card, device

    @abstractmethod
    def add(self, model: nn.Module, items: list[Item]) -> None:
        """Score the items of a batch, which may be empty."""

    @abstractmethod
    def result(self, reduce: Reduce, gather: Gather, seconds: float) -> DenseResult:
        """The scores; `reduce` sums a tensor over processes, `gather` joins their lists."""

    @torch.no_grad()
    def evaluate(
        self,
        model: nn.Module,
        batches: Iterable[list[Item]],
        precision: str,
        reduce: Reduce | None = None,
        gather: Gather | None = None,
        on_batch: Advance | None = None,
    ) -> DenseResult:
        """One pass over images; the mode of the model is restored afterwards.

        Args:
            precision: "no", "fp16" or "bf16" for autocast.
            reduce, gather: over processes; every process must then call this.
            on_batch: called with the number of images after every batch.
        """
        training, start = model.training, time.perf_counter()
        model.eval()
        try:
            for batch in batches:
                with autocast(self.device, precision):
                    self.add(model, batch)
                if on_batch is not None:
                    on_batch(len(batch))
        finally:
            model.train(training)
        return self.result(reduce or _alone, gather or _alone, time.perf_counter() - start)


def _alone(value: Item) -> Item:
    return value
