"""Diagrams of the studies: lines, histograms, bars. Drawn without a display."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np

from sightline.analysis.figures import new_figure
from sightline.analysis.study import Facts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = "os^Dvp*X"
WIDE, HIGH = 6.4, 4.0  # inches of a diagram
Pair = tuple[Sequence[float], Sequence[float]]


def finish(axis: "Axes", title: str, x: str, y: str, legend: int = 1) -> None:
    """Titles, grid and a legend of so many columns."""
    axis.set_title(title, fontsize=10, parse_math=False)
    axis.set_xlabel(x, fontsize=9)
    axis.set_ylabel(y, fontsize=9)
    axis.tick_params(labelsize=8)
    axis.grid(alpha=0.3)
    if legend:
        axis.legend(ncols=legend, fontsize=8, frameon=False)


def draw_lines(axis: "Axes", lines: Mapping[str, Pair], bands: Mapping[str, Pair] | None = None) -> None:
    """Lines of (x, y), with bands from least to most."""
    for (label, (x, y)), marker in zip(lines.items(), cycle(MARKERS), strict=False):
        (line,) = axis.plot(x, y, marker=marker, ms=4, lw=1.5, label=label)
        if bands and label in bands:
            axis.fill_between(x, *bands[label], color=line.get_color(), alpha=0.15, lw=0)
    axis.locator_params(axis="x", integer=True)


def layer_figure(
    title: str, y: str, models: Mapping[str, Sequence[Facts]], key: str, levels: Mapping[str, Sequence[float]],
    others: Mapping[str, Sequence[float]] | None = None,
) -> "Figure":  # fmt: skip
    """The fact `key` and its range over the layers of each model, `others` without a range, `levels` dotted in gray."""
    figure = new_figure(WIDE, HIGH)
    axis = figure.subplots()
    lines = {label: [at[key] for at in layers] for label, layers in models.items()} | dict(others or {})
    bands = {label: ([at["least"] for at in layers], [at["most"] for at in layers]) for label, layers in models.items()}
    draw_lines(axis, {label: (range(1, len(values) + 1), values) for label, values in lines.items()}, bands)
    for (label, values), grey in zip(levels.items(), cycle(("0.35", "0.55", "0.7")), strict=False):
        axis.plot(range(1, len(values) + 1), values, ls=":", lw=1.4, color=grey, label=label)
    axis.set_ylim(bottom=min(0.0, axis.get_ylim()[0]))
    finish(axis, title, "layer", y)
    return figure


def histogram_figure(title: str, x: str, series: Mapping[str, Sequence[float]]) -> "Figure":
    """A histogram per model over the same bins, one below the other; many orders of magnitude on a logarithmic axis."""
    figure = new_figure(WIDE, 1.1 + 1.25 * len(series))
    axes = figure.subplots(len(series), 1, sharex=True, squeeze=False)[:, 0]
    high = max(1.0, *(float(max(values)) for values in series.values()))
    wide = high > 1000
    edges = np.concatenate([[0], np.geomspace(1, high * 1.01 + 1, 25)]) if wide else np.linspace(0, high * 1.01, 26)
    for i, (axis, (label, values)) in enumerate(zip(axes, series.items(), strict=True)):
        axis.hist(values, edges, color=f"C{i}", label=f"{label}: mean {np.mean(values):,.4g}")
        if wide:
            axis.set_xscale("symlog", linthresh=1)
            axis.set_xlim(-0.1, high * 1.5)
        axis.locator_params(axis="y", integer=True)
        finish(axis, title if i == 0 else "", x if i == len(series) - 1 else "", "images")
    return figure


def bars_figure(
    titles: Sequence[str], y: str, groups: Sequence[str], panels: Sequence[Mapping[str, Sequence[float]]],
    width: float, numbers: bool = False,
) -> "Figure":  # fmt: skip
    """Panels with a title each, of bars side by side in groups, with their numbers if wished; `width` in inches."""
    figure = new_figure(width, HIGH)
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for i, (axis, title, series) in enumerate(zip(axes, titles, panels, strict=True)):
        bar = 0.8 / len(series)
        for j, (label, values) in enumerate(series.items()):
            positions = [group + (j - (len(series) - 1) / 2) * bar for group in range(len(groups))]
            drawn = axis.bar(positions, values, bar * 0.95, label=label)
            if numbers:
                axis.bar_label(drawn, [f"{value:.1f}" for value in values], fontsize=6, padding=1)
        axis.set_xticks(range(len(groups)), groups)
        axis.margins(y=0.2)
        finish(axis, title, "", "" if i else y, legend=0 if i else 2)
    return figure
