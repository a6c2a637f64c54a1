"""Evaluation of a classifier of images or sequences, after every epoch of training and by `sightline eval`.

result = evaluate(model, loader, classes=10)
for name, value in result:
    print(name, value)
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from sightline.tasks.base import Card, Row
from sightline.tasks.metrics import Statistics, precision, recall, scores, statistics
from sightline.util.device import autocast

Batches = Iterable[tuple[Tensor, Tensor]]  # examples, labels


@dataclass(frozen=True)
class Evaluation:
    """The sums over a whole set, on the CPU, and how long it took; iterating gives `(name, value)`."""

    total: Statistics
    seconds: float

    @cached_property
    def scores(self) -> dict[str, float]:
        """`top1`, `top5`, `balanced` and `ece` in percent, and `loss`."""
        return scores(self.total)

    @property
    def images(self) -> int:
        """Images that were scored."""
        return int(self.total.images)

    @property
    def confusion(self) -> Tensor:
        """Counts (classes, classes), one row per true class."""
        return self.total.confusion

    def __iter__(self) -> Iterator[tuple[str, float]]:
        yield from self.scores.items()

    def per_class(self, names: Iterable[str]) -> list[Row]:
        """One row per class: name, images, recall and precision in percent (None if undefined)."""
        columns = zip(
            names,
            self.total.targets.tolist(),
            map(_finite, recall(self.total).tolist()),
            map(_finite, precision(self.total).tolist()),
            strict=True,
        )
        return [{"class": n, "images": i, "recall": r, "precision": p} for n, i, r, p in columns]


def _finite(value: float) -> float | None:
    return round(value, 4) if value == value else None


@torch.no_grad()
def evaluate_tables(
    model: nn.Module,
    loader: Batches,
    classes: int,
    tables: Mapping[str, Tensor | None],
    *,
    device: torch.device | str = "cpu",
    precision: str = "no",
    reduce: Callable[[Tensor], Tensor] | None = None,
    on_batch: Callable[[int], None] | None = None,
) -> dict[str, Evaluation]:
    """Evaluate one pass over the images against several sets of labels at once.

    Args:
        model: gives (B, classes); its mode is restored afterwards.
        loader: batches (images, labels, ...), images as tensors.
        classes: outputs of the model.
        tables: by name, None if the loader gives the labels, or a table of labels indexed by the loader.
            A table is (images,) or (images, classes), see `metrics.statistics`.
        device: where the model is.
        precision: "no", "fp16" or "bf16" for autocast.
        reduce: sums a tensor over processes; every process must then call this.
        on_batch: called with the number of images after every batch.
    """
    target, training = torch.device(device), model.training
    start = time.perf_counter()
    moved = {name: None if table is None else table.to(target) for name, table in tables.items()}

    def count(logits: Tensor, labels: Tensor) -> dict[str, Statistics]:
        return {name: statistics(logits, labels if table is None else table[labels]) for name, table in moved.items()}

    # Of no images, which is what a process may have.
    totals = count(torch.zeros(0, classes, device=target), torch.zeros(0, dtype=torch.long, device=target))
    model.eval()
    try:
        for images, labels in loader:
            images, labels = images.to(target, non_blocking=True), labels.to(target, non_blocking=True)
            with autocast(target, precision):
                logits = model(images)
            totals = {name: totals[name] + found for name, found in count(logits, labels).items()}
            if on_batch is not None:
                on_batch(len(images))
    finally:
        model.train(training)
    if reduce is not None:
        totals = {name: total.map(reduce) for name, total in totals.items()}
    seconds = time.perf_counter() - start
    return {name: Evaluation(total.map(Tensor.cpu), seconds) for name, total in totals.items()}


def evaluate(
    model: nn.Module,
    loader: Batches,
    classes: int,
    *,
    device: torch.device | str = "cpu",
    precision: str = "no",
    reduce: Callable[[Tensor], Tensor] | None = None,
    on_batch: Callable[[int], None] | None = None,
) -> Evaluation:
    """Evaluate against the labels of the loader; the arguments are those of `evaluate_tables`."""
    return evaluate_tables(
        model, loader, classes, {"labels": None}, device=device, precision=precision, reduce=reduce, on_batch=on_batch
    )["labels"]


class ScoresLabels(ABC):
    """The `evaluate` of tasks with one label per example; the base of classification and sequences."""

    card: Card

    @abstractmethod
    def evaluation(self) -> Iterator[tuple[Tensor, Tensor]]:
        """This process's share of the examples to evaluate, every one once over all processes."""

    def evaluate(
        self,
        model: nn.Module,
        *,
        device: torch.device,
        precision: str,
        reduce: Callable[[Tensor], Tensor] | None = None,
        gather: object = None,
        on_batch: Callable[[int], None] | None = None,
    ) -> Evaluation:
        """Score the evaluation set, every example once over all processes."""
        return evaluate(
            model, self.evaluation(), len(self.card.classes), device=device, precision=precision, reduce=reduce,
            on_batch=on_batch,
        )  # fmt: skip
