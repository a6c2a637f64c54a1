"""The interface between tasks and the engine, the hub and the commands.

A task trains one type of model: classification, segmentation, detection, sequences. `sightline.tasks.registry` lists
them; everything above goes through that table and these types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from PIL import Image
    from torch import Tensor, nn

    from sightline.data.order import Order

Value: TypeAlias = str | int | float | list[float] | None
Row: TypeAlias = dict[str, Value]  # of a table or of JSON
Note: TypeAlias = Callable[[str, int, int], None]  # what, done, of how many
Advance: TypeAlias = Callable[[int], None]  # examples done since the last call
Progress: TypeAlias = Callable[[int, str], AbstractContextManager[Advance]]  # opens a bar for a total and a title
OnError: TypeAlias = Literal["stop", "skip"]


class Card(Protocol):
    """What a file of weights records about itself, so that the model can be rebuilt and used from the file alone."""

    @property
    def name(self) -> str:
        """Registered name of the model, or of the backbone."""

    @property
    def arguments(self) -> dict[str, object]:
        """What the model was built with besides its name; JSON can hold it."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in the order of the outputs; empty if unknown."""

    @property
    def input_size(self) -> tuple[int, ...]:
        """(channels, height, width) of images, (length,) of sequences."""

    @property
    def title(self) -> str:
        """A short description of the model."""

    def to_metadata(self) -> dict[str, str]:
        """The card as safetensors metadata."""


class Evaluation(Protocol):
    """The scores of one pass over an evaluation set; iterating gives `(name, value)`, in percent but for losses."""

    @property
    def images(self) -> int:
        """Examples that were scored."""

    @property
    def seconds(self) -> float: ...

    @property
    def confusion(self) -> Tensor | None:
        """Counts (classes, classes), a row per true class; None if the task has no such matrix."""

    def __iter__(self) -> Iterator[tuple[str, float]]: ...

    def per_class(self, names: Sequence[str]) -> list[Row]:
        """One row per class, its name under `class`."""


class Task(Protocol):
    """A model, its training batches, their loss and its evaluation.

    Attributes:
        model: in training mode on its device, neither compiled nor wrapped.
        order: the order of the training examples.
        broken: messages about examples that could not be read, each once.
    """

    model: nn.Module
    order: Order

    @property
    def card(self) -> Card: ...

    @property
    def notes(self) -> Sequence[str]:
        """Notes about the data for the user, one line each."""

    @property
    def broken(self) -> dict[str, None]: ...

    def __len__(self) -> int:
        """Examples to evaluate."""

    def batches(self, epoch: int, start: int) -> Iterator[object]:
        """The local micro-batches of an epoch from update `start` on; random by the seeds of `order` only."""

    def loss(self, model: nn.Module, batch: object) -> Tensor:
        """The mean loss of a micro-batch. It calls `model`, which may be wrapped for several processes."""

    def evaluate(
        self,
        model: nn.Module,
        *,
        device: torch.device,
        precision: str,
        reduce: Callable[[Tensor], Tensor] | None = None,
        gather: Callable[[list[object]], list[object]] | None = None,
        on_batch: Advance | None = None,
    ) -> Evaluation:
        """Score the evaluation set; `reduce` sums a tensor over processes, `gather` joins their lists."""

    def close(self) -> None:
        """End the loader processes."""


@dataclass(frozen=True)
class Loaded:
    """A model opened by `sightline.load`, in evaluation mode.

    Args:
        model: with its weights, on the CPU.
        card: what the file records about it.
        transform: PIL image -> (channels, height, width); None for models of sequences.
        classes: names in the order of the outputs, or () if unknown.
        path: the file of weights.
        task: name of its entry in `sightline.tasks.registry.TASKS`.
        label: a short description of the model; by default `card.title`.
    """

    model: nn.Module
    card: Card
    transform: Callable[[Image.Image], Tensor] | None
    classes: tuple[str, ...]
    path: Path
    task: str
    label: str = ""

    @property
    def title(self) -> str:
        return self.label or self.card.title

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters())


@dataclass(frozen=True)
class Example:
    """An evaluated image for a report.

    Args:
        title: what it is, and what the model predicts.
        image: (channels, height, width), as the model takes it.
        picture: the same as an image.
    """

    title: str
    image: Tensor
    picture: Image.Image


@dataclass(frozen=True)
class Scores:
    """The result of `sightline.evaluate`; iterating gives `(name, value)`.

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
    """Options of `sightline.evaluate`; a task rejects those that are not for it.

    Args:
        split: of the data; by default val, validation or test.
        limit: evaluate this many examples at most (of every class, for classification).
        img_size: (height, width); by default that of training.
        labels: how classes of the data are matched with outputs: names, order, v2, real or a JSON file.
        batch_size, workers: images per batch, and processes that decode them.
        device, precision: where, and in which mixed precision.
        on_error: what an unreadable image does.
        slide, scales, flip: windows, scales and mirror images of segmentation.
        progress: opens a progress bar for (total, title).
    """

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
    """Options of `sightline.predict`.

    Args:
        top: classes per image (classification).
        img_size: (height, width); by default that of training (classification).
        score: least score of a detection.
        on_error: what an unreadable image does.
    """

    device: torch.device
    top: int = 5
    img_size: tuple[int, int] | None = None
    score: float = 0.5
    on_error: OnError = "stop"


# An image of `sightline.predict`: a path or a decoded image.
ImageSource: TypeAlias = "str | Path | Image.Image"
StateReader: TypeAlias = "Callable[[], dict[str, Tensor]]"  # reads the tensors of a file when it is called
Metadata: TypeAlias = Mapping[str, str]
