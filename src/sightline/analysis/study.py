"""What all studies take and return, and the files they become.

A study applies an instrument to models and images; each is in the file of its instrument.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from torch import Tensor, nn

from sightline.analysis.capture import BlockCall, capture, with_rows
from sightline.util.files import write_atomic, write_bytes, write_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

T = TypeVar("T")
Facts: TypeAlias = dict[str, Any]  # JSON
DPI = 110
TEXT_COLUMNS = ("model", "layer", "mechanism", "verdict", "method", "mode", "from")  # all others are numbers


@dataclass(frozen=True)
class Subject:
    """A model under study, in evaluation mode, and preprocessed images (channels, height, width)."""

    title: str
    model: nn.Module
    images: Sequence[Tensor]


@dataclass
class Study:
    """The result of an instrument.

    Args:
        name: of the files.
        title: what it shows, in a line.
        facts: the numbers, as JSON holds them.
        figures: by name; each is a file.
        columns, rows: the table to print.
        notes: how it was measured, one sentence each.
        animations: GIF files by name.
        hovers: maps of all queries, see `hover_maps`, for pages.
    """

    name: str
    title: str
    facts: Facts
    figures: "dict[str, Figure]" = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    rows: list[list[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    animations: dict[str, bytes] = field(default_factory=dict)
    hovers: list[Facts] = field(default_factory=list)

    @property
    def numeric(self) -> frozenset[int]:
        """Indices of the columns that hold numbers."""
        return frozenset(i for i, column in enumerate(self.columns) if column not in TEXT_COLUMNS)


def write_studies(folder: Path, head: Mapping[str, object], studies: Sequence[Study]) -> list[Path]:
    """Write figures as PNG and SVG, animations as GIF, numbers as JSON; returns the paths.

    Args:
        head: how the numbers were made; goes into every JSON file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for study in studies:
        for name, figure in study.figures.items():
            for suffix in ("png", "svg"):
                written.append(folder / f"{name}.{suffix}")
                write_atomic(written[-1], partial(figure.savefig, dpi=DPI, bbox_inches="tight"))
        for name, data in study.animations.items():
            written.append(folder / f"{name}.gif")
            write_bytes(written[-1], data)
        written.append(folder / f"{study.name}.json")
        write_json(written[-1], {**head, "title": study.title, "notes": study.notes, "result": study.facts})
    return written


def telling_blocks(model: nn.Module, image: Tensor) -> list[BlockCall]:
    """The calls of all blocks with more than one key whose mechanism has a matrix of weights.

    Raises:
        InputError: no mechanism has.
    """
    return with_rows([block for block in capture(model, image) if block.keys > 1])


def by_layer(
    subjects: Sequence[Subject],
    measure: Callable[[list[BlockCall]], list[T]],
    summarize: Callable[[Sequence[T]], Facts],
) -> dict[str, list[Facts]]:
    """By the title of a subject, the facts of each block with more than one key: a summary of all images."""
    found = {}
    for subject in subjects:
        images = [measure(telling_blocks(subject.model, image)) for image in subject.images]
        found[subject.title] = [summarize(items) for items in zip(*images, strict=True)]
    return found


def titled(layers: Mapping[str, list[Facts]]) -> list[Facts]:
    """The facts of `by_layer` as a list of subjects."""
    return [{"title": title, "layers": each} for title, each in layers.items()]


def over_heads(name: str, values: Sequence[Sequence[float]]) -> Facts:
    """Of numbers [image][head]: mean, least and most over images of the mean over heads, and the mean of each head."""
    means = [mean(heads) for heads in values]
    heads = [mean(head) for head in zip(*values, strict=True)]
    return {name: mean(means), "least": min(means), "most": max(means), "heads": heads}


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def short(block: str) -> str:
    """The name of a block without the common suffix: stages.2.blocks.1.attn -> stages.2.blocks.1."""
    return block.removesuffix(".attn")
