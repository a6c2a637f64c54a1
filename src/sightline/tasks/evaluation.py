"""Evaluation of a model, after every epoch of training and by `sightline eval`: one pass, scored batch by batch.

scores = LabelScorer(names, device).evaluate(model, batches)
for name, value in scores:
    print(name, value)
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from sightline.tasks.base import Advance, EvalOptions, Row, Scores
from sightline.tasks.metrics import Statistics, precision, recall, scores, statistics
from sightline.tasks.replay import replayed
from sightline.util.device import autocast

B = TypeVar("B")  # a batch
R = TypeVar("R")
Reduce = Callable[[Tensor], Tensor]  # sums over processes
Gather = Callable[[list[Any]], list[Any]]  # joins the lists of processes
LabelBatch = tuple[Tensor, Tensor]  # examples, labels


def class_rows(names: Sequence[str], columns: Mapping[str, Sequence[float]]) -> list[Row]:
    """One row per class: its name, and its value in every column, or None for nan."""
    return [
        {
            "class": name,
            **{key: round(value, 4) if value == value else None for key, value in zip(columns, values, strict=True)},
        }
        for name, *values in zip(names, *columns.values(), strict=True)
    ]


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


def run_scorer(
    scorer: Scorer[B, R], model: nn.Module, batches: Iterable[B], options: EvalOptions, total: int, title: str
) -> R:
    """The result of a scorer for `sightline.evaluate`, with a progress bar over `total` examples."""
    bar = nullcontext() if options.progress is None else options.progress(total, title)
    with bar as advance:
        return scorer.evaluate(replayed(model, options.device), batches, options.precision, on_batch=advance)


def _alone(value: R) -> R:
    return value


class LabelScorer(Scorer[LabelBatch, Scores]):
    """Accuracy, calibration and loss of a model that gives (B, classes).

    Args:
        names: of the classes.
        table: None if batches have labels, or a table of labels if they have its indices: (examples,) or
            (examples, classes), see `metrics.statistics`.
    """

    def __init__(self, names: Sequence[str], device: torch.device, table: Tensor | None = None) -> None:
        super().__init__(device)
        self.names, self.table = names, None if table is None else table.to(device)
        nothing = torch.zeros(0, dtype=torch.long, device=device)
        self.total = self._statistics(torch.zeros(0, len(names), device=device), nothing)

    def add(self, model: nn.Module, batch: LabelBatch) -> int:
        examples, labels = (tensor.to(self.device, non_blocking=True) for tensor in batch)
        self.count(model(examples), labels)
        return len(examples)

    def count(self, logits: Tensor, labels: Tensor) -> None:
        """Score the outputs of a batch."""
        self.total = self.total + self._statistics(logits, labels)

    def result(self, reduce: Reduce, gather: Gather, seconds: float) -> Scores:
        total = self.total.map(reduce).map(Tensor.cpu)
        columns = {"images": total.targets, "recall": recall(total), "precision": precision(total)}
        return Scores(
            scores(total),
            class_rows(self.names, {key: column.tolist() for key, column in columns.items()})
            if total.targets.any()
            else [],
            total.confusion if total.confusion.numel() else None,
            int(total.images),
            seconds,
            nonfinite=int(total.nonfinite),
        )

    def _statistics(self, logits: Tensor, labels: Tensor) -> Statistics:
        return statistics(logits, labels if self.table is None else self.table[labels])
