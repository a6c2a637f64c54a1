"""What the engine trains, and its evaluation after every epoch and by `sightline eval`: one pass, scored by batch.

scores = LabelScorer(names, device).evaluate(model, batches)
for name, value in scores:
    print(name, value)
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from sightline.data.order import Order
from sightline.tasks.base import Advance, EvalOptions, Row, Scores
from sightline.tasks.card import Card
from sightline.tasks.metrics import Statistics, precision, recall, scores, statistics
from sightline.util.device import autocast

T = TypeVar("T")  # a batch to train on
B = TypeVar("B")  # a batch to evaluate
R = TypeVar("R")
Reduce = Callable[[Tensor], Tensor]
Gather = Callable[[list[Any]], list[Any]]
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
        return scorer.evaluate(model.to(options.device), batches, options.precision, on_batch=advance)


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


class Task(ABC, Generic[T, B]):
    """A model, its training batches, their loss and the examples it is evaluated on.

    Attributes:
        model: in training mode on its device, neither compiled nor wrapped.
        card: what a file of its weights records.
        order: the order of the training examples.
        notes: what a user should know about the data, one line each.
        broken: messages about examples that could not be read, each once.
    """

    model: nn.Module
    card: Card
    order: Order
    notes: Sequence[str]
    broken: dict[str, None]

    @abstractmethod
    def __len__(self) -> int:
        """Examples to evaluate."""

    @abstractmethod
    def batches(self, epoch: int, start: int) -> Iterator[T]:
        """The local micro-batches of an epoch from update `start` on; random by the seeds of `order` only."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: T) -> Tensor:
        """The mean loss of a micro-batch. It calls `model`, which may be wrapped for several processes."""

    @abstractmethod
    def evaluation(self) -> Iterator[B]:
        """This process's share of the examples to evaluate, every one once over all processes."""

    @abstractmethod
    def scorer(self, device: torch.device) -> Scorer[B, Scores]:
        """Scores the examples to evaluate."""

    def close(self) -> None:
        """End the loader processes, if there are any."""
