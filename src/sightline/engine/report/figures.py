"""Learning curves and the confusion matrix."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sightline.analysis.figures import new_figure
from sightline.engine.report.record import Record
from sightline.models.attention_error import block_errors
from sightline.util.files import write_result
from sightline.util.text import NAME, printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_NAMED = 40  # classes up to which the axes of the confusion matrix carry names
MAX_NUMBERED = 15  # classes up to which its cells carry numbers
MOST_WRITTEN = 99999  # counts up to which these are counts; larger ones, of pixels, do not fit and become percents
LOSSES = {"train_loss": "training", "loss": "test", "val_loss": "test"}
AVERAGED = {"ema_top1": "top-1, averaged weights"}


def curves_figure(record: Record) -> "Figure | None":
    """Loss, scores and learning rate by epoch; None if nothing was measured."""
    panels: list[tuple[str, dict[str, str]]] = [
        ("loss", LOSSES),
        ("score, %", {**record.spec.shown, **AVERAGED}),
        ("learning rate", {"lr": ""}),
    ]
    panels = [(title, keys) for title, keys in panels if any(record.series(key) for key in keys)]
    if not panels:
        return None
    figure = new_figure(3.6 * len(panels), 2.9)
    axes: Any = figure.subplots(1, len(panels), squeeze=False)
    for axis, (title, keys) in zip(axes[0], panels, strict=True):
        for key, label in keys.items():
            if points := record.series(key):
                marker = "o" if len(points) <= 30 else None
                axis.plot(list(points), list(points.values()), marker=marker, ms=3, lw=1.5, label=label)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("epoch", fontsize=9)
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.tick_params(labelsize=8)
        axis.grid(alpha=0.3)
        if any(keys.values()):
            axis.legend(fontsize=8, frameon=False)
    return figure


def blocks_figure(record: Record) -> "Figure | None":
    """The error of every block's attention in the first and the last evaluation; None if it was not measured."""
    measured = [(row["epoch"], errors) for row in record.rows if (errors := block_errors(row))]
    if not measured:
        return None
    figure = new_figure(6.0, 2.9)
    axis: Any = figure.subplots()
    wide = 0.8 / min(2, len(measured))
    for number, (epoch, errors) in enumerate(measured[:1] + measured[1:][-1:]):
        axis.bar([i + number * wide for i in range(len(errors))], errors, wide, label=f"epoch {epoch:.0f}")
    axis.set_xlabel("block", fontsize=9)
    axis.set_ylabel("relative squared error", fontsize=9)
    axis.tick_params(labelsize=8)
    axis.legend(fontsize=8, frameon=False)
    return figure


def confusion_figure(names: Sequence[str], confusion: Sequence[Sequence[int]]) -> "Figure":
    """The confusion matrix, every row in percent of its class."""
    counts = np.asarray(confusion, dtype=float)
    share = 100 * counts / np.maximum(counts.sum(1, keepdims=True), 1)
    classes = len(counts)
    names = [printable(name, NAME) for name in names[:classes]]
    side = min(3 + 0.42 * classes, 11)
    figure = new_figure(side + 0.8, side)
    axis: Any = figure.subplots()
    drawn = axis.imshow(share, cmap="Blues", vmin=0, vmax=100)
    figure.colorbar(drawn, ax=axis, fraction=0.046, pad=0.03, label="% of the true class")
    axis.set_xlabel("predicted")
    axis.set_ylabel("true")
    if classes <= MAX_NAMED and len(names) == classes:
        axis.set_xticks(range(classes), names, rotation=90, fontsize=8, parse_math=False)
        axis.set_yticks(range(classes), names, fontsize=8, parse_math=False)
    if classes <= MAX_NUMBERED:
        for i, j in np.ndindex(classes, classes):
            if counts[i, j]:
                colour = "white" if share[i, j] > 55 else "black"
                number = share[i, j] if counts.max() > MOST_WRITTEN else counts[i, j]
                axis.text(j, i, f"{number:.0f}", ha="center", va="center", fontsize=7, color=colour)
    return figure


def write_figure(path: Path, figure: "Figure", option: str = "--out") -> None:
    """Write a figure as PNG; `option` names its folder in errors."""
    write_result(path, partial(figure.savefig, dpi=110, bbox_inches="tight"), option)
