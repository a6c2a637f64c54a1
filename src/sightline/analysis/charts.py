"""Diagrams of the studies: lines, histograms, bars, tables of scores. Drawn without a display."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from sightline.analysis.figures import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

MARKERS = "os^Dvp*X"
WIDE, HIGH = 6.4, 4.0  # inches of a diagram
LEGEND = {"fontsize": 8, "frameon": False}


def _finish(axis: "Axes", title: str, x: str, y: str) -> None:
    axis.set_title(title, fontsize=10, parse_math=False)
    axis.set_xlabel(x, fontsize=9)
    axis.set_ylabel(y, fontsize=9)
    axis.tick_params(labelsize=8)
    axis.grid(alpha=0.3)


def _whole_numbers(axis: "Axis") -> None:
    from matplotlib.ticker import MaxNLocator

    locator = axis.get_major_locator()
    assert isinstance(locator, MaxNLocator)
    locator.set_params(integer=True)


def layer_figure(
    title: str, y: str, series: Mapping[str, Sequence[float]], levels: Mapping[str, Sequence[float]] | None = None,
    spread: Mapping[str, tuple[Sequence[float], Sequence[float]]] | None = None, zero: bool = True,
) -> "Figure":  # fmt: skip
    """A line per model over its layers; `levels` dotted in gray, `spread` as a band from least to most."""
    figure = new_figure(WIDE, HIGH)
    axis = figure.subplots()
    for (label, values), marker in zip(series.items(), MARKERS * len(series), strict=False):
        layers = range(1, len(values) + 1)
        (line,) = axis.plot(layers, values, marker=marker, ms=4, lw=1.5, label=label)
        if spread and label in spread:
            axis.fill_between(layers, *spread[label], color=line.get_color(), alpha=0.15, lw=0)
    for (label, values), grey in zip((levels or {}).items(), ("0.35", "0.55", "0.7") * 9, strict=False):
        axis.plot(range(1, len(values) + 1), values, ls=":", lw=1.4, color=grey, label=label)
    _whole_numbers(axis.xaxis)
    if zero:
        axis.set_ylim(bottom=min(0.0, axis.get_ylim()[0]))
    _finish(axis, title, "layer", y)
    axis.legend(**LEGEND)
    return figure


def histogram_figure(title: str, x: str, series: Mapping[str, Sequence[float]]) -> "Figure":
    """A histogram per model over the same bins, one below the other; many orders of magnitude on a logarithmic axis."""
    figure = new_figure(WIDE, 1.1 + 1.25 * len(series))
    axes = figure.subplots(len(series), 1, sharex=True, squeeze=False)[:, 0]
    everything = np.concatenate([np.asarray(values, float) for values in series.values()])
    high = max(float(everything.max()), 1.0)
    wide = high > 1000
    edges = np.concatenate([[0], np.geomspace(1, high * 1.01 + 1, 25)]) if wide else np.linspace(0, high * 1.01, 26)
    for i, (axis, (label, values)) in enumerate(zip(axes, series.items(), strict=True)):
        axis.hist(values, edges, color=f"C{i}", label=f"{label}: mean {np.mean(values):,.4g}")
        if wide:
            axis.set_xscale("symlog", linthresh=1)
            axis.set_xlim(-0.1, high * 1.5)
        _whole_numbers(axis.yaxis)
        _finish(axis, title if i == 0 else "", x if i == len(series) - 1 else "", "images")
        axis.legend(**LEGEND)
    return figure


def bars_figure(title: str, y: str, groups: Sequence[str], series: Mapping[str, Sequence[float]]) -> "Figure":
    """Bars side by side in groups, each with its number."""
    figure = new_figure(max(WIDE, 0.5 * len(groups) * max(len(series), 1) + 2), HIGH)
    axis = figure.subplots()
    width = 0.8 / max(len(series), 1)
    for i, (label, values) in enumerate(series.items()):
        positions = [g + (i - (len(series) - 1) / 2) * width for g in range(len(groups))]
        drawn = axis.bar(positions, values, width * 0.95, label=label)
        axis.bar_label(drawn, [f"{value:.1f}" for value in values], fontsize=6, padding=1)
    axis.set_xticks(range(len(groups)), groups, fontsize=8)
    _finish(axis, title, "", y)
    axis.margins(y=0.2)
    axis.legend(ncols=2, **LEGEND)
    return figure


def toy_figure(scores: Mapping[str, Sequence[Sequence[float]]]) -> "Figure":
    """For every mechanism, the scores of each query over the keys."""
    figure = new_figure(3.1 * len(scores), 3.0)
    axes = figure.subplots(1, len(scores), sharey=True, squeeze=False)[0]
    for axis, (name, rows) in zip(axes, scores.items(), strict=True):
        for i, row in enumerate(rows):
            width = 0.8 / len(rows)
            positions = [j + (i - (len(rows) - 1) / 2) * width for j in range(len(row))]
            axis.bar(positions, row, width * 0.92, color=f"C{i}", label=f"query {i + 1}")
        axis.set_xticks(range(len(rows[0])), [f"key {j + 1}" for j in range(len(rows[0]))])
        _finish(axis, name, "", "score" if axis is axes[0] else "")
    axes[0].legend(**LEGEND)
    return figure


def curves_figure(
    title: str, x: str, y: str, curves: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    bands: Mapping[str, tuple[Sequence[float], Sequence[float]]] | None = None, log: bool = True, base: int = 10,
) -> "Figure":  # fmt: skip
    """Lines of (x, y), with bands from least to most, on a logarithmic axis of `base` or a plain one."""
    figure = new_figure(WIDE, HIGH)
    draw_curves(figure.subplots(), title, x, y, curves, bands, log, base)
    return figure


def draw_curves(
    axis: "Axes", title: str, x: str, y: str, curves: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    bands: Mapping[str, tuple[Sequence[float], Sequence[float]]] | None = None, log: bool = True, base: int = 10,
) -> None:  # fmt: skip
    """The lines of `curves_figure`, on an axis."""
    for (label, (x_values, values)), marker in zip(curves.items(), MARKERS * len(curves), strict=False):
        (line,) = axis.plot(x_values, values, marker=marker, ms=3.5, lw=1.4, label=label)
        if bands and label in bands:
            axis.fill_between(x_values, *bands[label], color=line.get_color(), alpha=0.15, lw=0)
    if log:
        axis.set_yscale("log", base=base)
    _whole_numbers(axis.xaxis)
    _finish(axis, title, x, y)
    axis.legend(**LEGEND)
