"""Evaluation of a model, after every epoch of training and by `sightline eval`: one pass, scored batch by batch.

result = LabelScorer(10, device).evaluate(model, batches)
for name, value in result:
    print(name, value)
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from sightline.tasks.base import Advance, Card, Row
from sightline.tasks.metrics import Statistics, precision, recall, scores, statistics
from sightline.util.device import autocast

B = TypeVar("B")  # a batch
R = TypeVar("R")
Reduce = Callable[[Tensor], Tensor]
Gather = Callable[[list[Any]], list[Any]]
LabelBatch = tuple[Tensor, Tensor]  # examples, labels


@dataclass(frozen=True)
class Result:
    """Scores over a whole set; iterating gives `(name, value)`.

    Args:
        values: in percent but for losses.
        by_class: one value per class under every name, nan if it has none.
        images, seconds: of the evaluation.
        confusion: counts (classes, classes) on the CPU, a row per true class, or None.
        nonfinite: examples whose outputs were not finite.
    """

    values: dict[str, float]
    by_class: Mapping[str, list[float]]
    images: int
    seconds: float = 0.0
    confusion: Tensor | None = None
    nonfinite: int = 0

    def __iter__(self) -> Iterator[tuple[str, float]]:
        yield from self.values.items()

    def per_class(self, names: Sequence[str]) -> list[Row]:
        """One row per class: its name, and the values or None."""
        columns = {key: [round(v, 4) if v == v else None for v in column] for key, column in self.by_class.items()}
        return [{"class": name, **{key: columns[key][i] for key in columns}} for i, name in enumerate(names)]


class Scorer(ABC, Generic[B, R]):
    """Compares what a model finds with the truth, batch by batch, on the device of the model."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @abstractmethod
    def add(self, model: nn.Module, batch: B) -> int:
        """Score a batch, which may be empty; returns the number of its examples."""

    @abstractmethod
    def result(self, reduce: Reduce, gather: Gather, seconds: float) -> R:
        """The scores; `reduce` sums a tensor over processes, `gather` joins their lists."""

    @torch.no_grad()
    def evaluate(
        self,
        model: nn.Module,
        batches: Iterable[B],
        precision: str = "no",
        reduce: Reduce | None = None,
        gather: Gather | None = None,
        on_batch: Advance | None = None,
    ) -> R:
        """One pass over a set; the mode of the model is restored afterwards.

        Args:
            precision: "no", "fp16" or "bf16" for autocast.
            reduce, gather: over processes; every process must then call this.
            on_batch: called with the number of examples after every batch.
        """
        training, start = model.training, time.perf_counter()
        model.eval()
        try:
            for batch in batches:
                with autocast(self.device, precision):
                    count = self.add(model, batch)
                if on_batch is not None:
                    on_batch(count)
        finally:
            model.train(training)
        return self.result(reduce or _alone, gather or _alone, time.perf_counter() - start)


def _alone(value: R) -> R:
    return value


class LabelScorer(Scorer[LabelBatch, Result]):
    """Accuracy, calibration and loss of a model that gives (B, classes).

    Args:
        classes: outputs of the model.
        table: None if batches have labels, or a table of labels if they have its indices: (examples,) or
            (examples, classes), see `metrics.statistics`.
    """

    def __init__(self, classes: int, device: torch.device, table: Tensor | None = None) -> None:
        super().__init__(device)
        self.table = None if table is None else table.to(device)
        nothing = torch.zeros(0, dtype=torch.long, device=device)
        self.total = self._statistics(torch.zeros(0, classes, device=device), nothing)

    def add(self, model: nn.Module, batch: LabelBatch) -> int:
        examples, labels = (tensor.to(self.device, non_blocking=True) for tensor in batch)
        self.count(model(examples), labels)
        return len(examples)

    def count(self, logits: Tensor, labels: Tensor) -> None:
        """Score the outputs of a batch."""
        self.total = self.total + self._statistics(logits, labels)

    def result(self, reduce: Reduce, gather: Gather, seconds: float) -> Result:
        total = self.total.map(reduce).map(Tensor.cpu)
        columns = {"images": total.targets, "recall": recall(total), "precision": precision(total)}
        by_class = {name: column.tolist() for name, column in columns.items()}
        return Result(scores(total), by_class, int(total.images), seconds, total.confusion, int(total.nonfinite))

    def _statistics(self, logits: Tensor, labels: Tensor) -> Statistics:
        return statistics(logits, labels if self.table is None else self.table[labels])


class ScoredTask(ABC, Generic[B]):
    """The `evaluate` of a task."""

    @abstractmethod
    def scorer(self, device: torch.device) -> Scorer[B, Result]:
        """Scores the examples to evaluate."""

    @abstractmethod
    def evaluation(self) -> Iterator[B]:
        """This process's share of the examples to evaluate, every one once over all processes."""

    def evaluate(
        self,
        model: nn.Module,
        *,
        device: torch.device,
        precision: str,
        reduce: Reduce | None = None,
        gather: Gather | None = None,
        on_batch: Advance | None = None,
    ) -> Result:
        """Score the evaluation set, every example once over all processes."""
        return self.scorer(device).evaluate(model, self.evaluation(), precision, reduce, gather, on_batch)


class ScoresLabels(ScoredTask[LabelBatch]):
    """A task with one label per example: classification and sequences."""

    card: Card

    def scorer(self, device: torch.device) -> LabelScorer:
        return LabelScorer(len(self.card.classes), device)
