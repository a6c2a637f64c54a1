"""What all studies take and give."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from sightline.analysis.capture import BlockCall, capture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Tick = Callable[[], None]


@dataclass(frozen=True)
class Subject:
    """A model under study, in evaluation mode, and images (channels, height, width) as it takes them."""

    title: str
    model: nn.Module
    images: Sequence[Tensor] = ()


@dataclass
class Study:
    """What came out.

    Args:
        name: of the files.
        title: what it shows, in a line.
        facts: the numbers, as JSON holds them.
        figures: by name; each is a file.
        columns, rows: the table to print.
        notes: how it was measured, and what to keep in mind; a sentence each.
        animations: GIF files by name.
    """

    name: str
    title: str
    facts: dict[str, Any]
    figures: "dict[str, Figure]" = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    rows: list[list[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    animations: dict[str, bytes] = field(default_factory=dict)


def no_tick() -> None:
    """Progress that nobody watches."""


def captured(subject: Subject, tick: Tick) -> Iterator[list[BlockCall]]:
    """The calls of all blocks that see more than one place, image by image."""
    for image in subject.images:
        blocks = capture(subject.model, image)
        yield [block for block in blocks if block.keys > 1]
        tick()


def short(block: str) -> str:
    """The name of a block without what all of them share: stages.2.blocks.1.attn -> stages.2.blocks.1."""
    return block.removesuffix(".attn")


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
