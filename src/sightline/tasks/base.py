"""The interface between tasks and the engine, the hub and the commands.

A task trains one type of model: classification, segmentation, detection, sequences. `sightline.tasks.registry` lists
them; everything above goes through that table and these types.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from PIL import Image
    from torch import Tensor, nn

    from sightline.data.order import Order

Value: TypeAlias = str | int | float | list[float] | None
Row: TypeAlias = dict[str, Value]  # of a table or of JSON
Advance: TypeAlias = Callable[[int], None]  # examples done since the last call
Progress: TypeAlias = Callable[[int, str], AbstractContextManager[Advance]]  # opens a bar for a total and a title
T = TypeVar("T")
B = TypeVar("B")
Scored = TypeVar("Scored", contravariant=True)
OnError: TypeAlias = Literal["stop", "skip"]
Shapes: TypeAlias = Literal["fixed", "lengths", "any"]
BLOCK = re.compile(r"(?:^|\.)blocks\.\d+$")  # the name of a block, in our models and in timm's transformers
SKIP = "on_error=skip"  # argument of `evaluate` and `predict`


class Card(Protocol):
    """What a file of weights records, so that the model can be rebuilt and used from it alone; see `tasks.card`."""

    @property
    def name(self) -> str: ...

    @property
    def arguments(self) -> dict[str, Any]: ...

    @property
    def classes(self) -> tuple[str, ...]: ...

    @property
    def input_size(self) -> tuple[int, ...]: ...

    @property
    def title(self) -> str: ...

    def to_metadata(self) -> dict[str, str]: ...


class Evaluation(Protocol[Scored]):
    """Scores a model in one pass over batches; see `tasks.evaluation.Scorer`."""

    def evaluate(
        self,
        model: nn.Module,
        batches: Iterable[Scored],
        precision: str = "no",
        reduce: Callable[[Tensor], Tensor] | None = None,
        gather: Callable[[list[Any]], list[Any]] | None = None,
        on_batch: Advance | None = None,
    ) -> Scores: ...


class Task(Protocol[T, B]):
    """A model, its training batches T with their loss, and the batches B that it is evaluated on.

    Attributes:
        model: in training mode on its device, neither compiled nor wrapped.
        card: what a file of its weights records.
        order: the order of the training examples.
        notes: what a user should know about the data, one line each.
        broken: messages about examples that could not be read, each once.
        shapes: of training batches: all the same, sequences of several lengths, or images of any size.
    """

    model: nn.Module
    card: Card
    order: Order
    notes: Sequence[str]
    broken: dict[str, None]
    shapes: Shapes = "fixed"

    @property
    def compiled(self) -> nn.Module:
        """The part of the model that torch.compile takes."""
        return self.model

    @property
    def repeated(self) -> Sequence[nn.Module]:
        """What `model.compile=blocks` compiles: parts of one structure share the code of the first of them."""
        return blocks_of(self.compiled) or [self.compiled]

    def __len__(self) -> int:
        """Examples to evaluate."""

    def batches(self, epoch: int, start: int) -> Iterator[T]:
        """The local micro-batches of an epoch from update `start` on; random by the seeds of `order` only."""

    def loss(self, model: nn.Module, batch: T) -> Tensor:
        """The mean loss of a micro-batch. It calls `model`, which may be wrapped for several processes."""

    def evaluation(self) -> Iterator[B]:
        """This process's share of the examples to evaluate, every one once over all processes."""

    def scorer(self, device: torch.device) -> Evaluation[B]:
        """Scores the examples to evaluate."""

    def close(self) -> None:
        """End the loader processes."""


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The blocks of a model, in their order."""
    return [module for name, module in model.named_modules() if BLOCK.search(name)]


@dataclass(frozen=True)
class Loaded:
    """A model opened by `sightline.load`, in evaluation mode.

    Args:
        model: with its weights.
        card: what the file records about it.
        transform: PIL image -> (channels, height, width); None for sequence models.
        classes: names in the order of the outputs, or () if unknown.
        path: the file of weights.
        task: name of its entry in `sightline.tasks.registry.TASKS`.
    """

    model: nn.Module
    card: Card
    transform: Callable[[Image.Image], Tensor] | None
    classes: tuple[str, ...]
    path: Path
    task: str

    @property
    def parameters(self) -> int:
        known = getattr(self.model, "num_parameters", None)  # of an exported file
        return sum(p.numel() for p in self.model.parameters()) if known is None else int(known)

    @property
    def device(self) -> torch.device | Literal["cpu"]:
        """Where the model takes its input: `sightline.evaluate` and `sightline.predict` move it to their device."""
        weight = next(self.model.parameters(), None)  # an exported file has none, and takes images on any device
        return "cpu" if weight is None else weight.device


@dataclass(frozen=True)
class Scores:
    """The scores of one pass over an evaluation set; iterating gives `(name, value)`.

    Args:
        values: by name, in percent but for losses; nan if nothing could be scored.
        per_class: one row per class, its name under `class`.
        confusion: counts (classes, classes), a row per true class, or None.
        images: examples that were scored.
        seconds: of the whole pass.
        data: the evaluated split, for display.
        size: (height, width) of the images, or None where they keep their own.
        broken: messages about examples that could not be read and were skipped.
        notes: what a user should know about the data, one line each.
        nonfinite: examples whose outputs were not finite; they count as wrong.
        details: what else a task reports, for JSON.
    """

    values: dict[str, float]
    per_class: list[Row] = field(default_factory=list)
    confusion: Tensor | None = None
    images: int = 0
    seconds: float = 0.0
    data: str = ""
    size: tuple[int, int] | None = None
    broken: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    nonfinite: int = 0
    details: Row = field(default_factory=dict)

    def __iter__(self) -> Iterator[tuple[str, float]]:
        yield from self.values.items()

    def __getitem__(self, name: str) -> float:
        return self.values[name]

    @property
    def skipped(self) -> int:
        """Examples that could not be read."""
        return len(self.broken)


@dataclass(frozen=True)
class EvalOptions:
    """The options of `sightline.evaluate`, which describes them; `img_size` is (height, width)."""

    device: torch.device
    split: str | None = None
    limit: int | None = None
    img_size: tuple[int, int] | None = None
    labels: str = "names"
    batch_size: int = 64
    workers: int = 2
    precision: str = "no"
    on_error: OnError = "stop"
    slide: bool = False
    scales: tuple[float, ...] = ()
    flip: bool = False
    progress: Progress | None = None


@dataclass(frozen=True)
class Prediction:
    """What a model finds in one image; a task may add tensors in a subclass.

    Args:
        file: the image.
        found: rows, the likeliest or largest first: `class` with `probability`, `share`, or `score` and `box`.
        error: why the image could not be read, or None.
    """

    file: str
    found: list[Row] = field(default_factory=list)
    error: str | None = None

    def draw(self) -> Image.Image | None:
        """The image with what was found drawn over it; None if there is nothing to draw."""
        return None


@dataclass(frozen=True)
class PredictOptions:
    """The options of `sightline.predict`, which describes them; `img_size` is (height, width)."""

    device: torch.device
    top: int = 5
    img_size: tuple[int, int] | None = None
    score: float = 0.5


ImageSource: TypeAlias = "str | Path | Image.Image"  # of `sightline.predict`
Predictor: TypeAlias = "Callable[[str, Image.Image], Prediction]"  # takes the name of an image and the image
