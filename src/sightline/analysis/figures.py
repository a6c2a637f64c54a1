"""Attention maps next to their image, and diagrams of studies: lines, histograms, bars.

Drawn without a display; matplotlib is imported when a figure is made.
"""

from collections.abc import Mapping, Sequence
from itertools import cycle
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image
from torch import Tensor, nn

from sightline.analysis.capture import BlockCall, capture, with_rows
from sightline.analysis.maps import AttentionMap, Query, maps_of
from sightline.analysis.study import Facts, short
from sightline.util.errors import InputError
from sightline.util.text import NAME, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL = 2.2  # inches of a map
WIDE, HIGH = 6.4, 4.0  # inches of a diagram
TITLE = 30  # letters in a line of a title
SIGNED = "RdBu_r"  # blue below zero, white at zero, red above
UNSIGNED = "viridis"
SPAN = 0.2  # least width of a scale, in multiples of uniform attention
MARKERS = "os^Dvp*X"
Pair = tuple[Sequence[float], Sequence[float]]


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure; width and height in inches.

    Raises:
        InputError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError("figures need matplotlib: pip install matplotlib") from error
    return Figure(figsize=(width, height), layout="constrained")


def attention_figure(rows: "Sequence[tuple[str, Image.Image, Sequence[AttentionMap]]]") -> "Figure":
    """A row per image: its title, the preprocessed image with the query marked, and the maps next to it.

    A map shows the mean over heads, as a multiple of uniform attention, 1 / N, on a scale of its own, at least SPAN
    wide: a uniform map looks uniform. Weights keep their sign: if any is negative, blue is negative, white zero and red
    positive; otherwise dark is least, bright most.
    """
    columns = 1 + max((len(maps) for _, _, maps in rows), default=0)
    figure = new_figure(PANEL * columns + 0.8, (PANEL + 0.45) * len(rows))
    grid = figure.subplots(len(rows), columns, squeeze=False)
    for axes, (title, image, maps) in zip(grid, rows, strict=True):
        for axis in axes:
            axis.set_axis_off()
        _draw_image(axes[0], title, image, maps)
        for axis, found in zip(axes[1:], maps, strict=False):
            _draw_map(figure, axis, found, image.size)
    return figure


def _draw_image(axis: "Axes", title: str, image: Image.Image, maps: "Sequence[AttentionMap]") -> None:
    axis.imshow(image.convert("RGB"))
    axis.set_title(fill(printable(title, NAME), TITLE), fontsize=8, parse_math=False)
    if maps and maps[-1].position is not None:
        # The middle of the token, in the finest grid that is shown.
        finest = max(maps, key=lambda found: found.grid[0])
        assert finest.position is not None
        down, across = ((p + 0.5) / n for p, n in zip(finest.position, finest.grid, strict=True))
        axis.plot(across * image.width - 0.5, down * image.height - 0.5, "o", mfc="none", mec="lime", ms=9, mew=2)


def _draw_map(figure: "Figure", axis: "Axes", found: AttentionMap, size: tuple[int, int]) -> None:
    mean = found.weights.mean(0).numpy()
    relative = mean * (mean.size + found.prefix.shape[1])
    low, high, colours = _scale(float(relative.min()), float(relative.max()))
    extent = (0, size[0], size[1], 0)
    drawn = axis.imshow(relative, cmap=colours, vmin=low, vmax=high, extent=extent, interpolation="nearest")
    title = f"{short(found.block)}, {found.mechanism.replace(',', ', ')}"  # lines break at spaces
    axis.set_title(fill(title, TITLE), fontsize=7, parse_math=False)
    bar = figure.colorbar(drawn, ax=axis, fraction=0.046, pad=0.03)
    bar.ax.tick_params(labelsize=6)
    bar.ax.ticklabel_format(useOffset=False)  # plain numbers, without an offset in the corner


def _scale(low: float, high: float) -> tuple[float, float, str]:
    """The ends of a map's scale, far enough apart that rounding does not look like a pattern, and its colors."""
    if low < 0:
        end = max(-low, high, SPAN / 2)
        return -end, end, SIGNED
    missing = max(0.0, SPAN - (high - low)) / 2
    low = max(0.0, low - missing)
    return low, max(high + missing, low + SPAN), UNSIGNED


def telling_maps(model: nn.Module, image: Tensor, query: Query, count: int = 3) -> list[AttentionMap]:
    """Maps of `count` blocks from the first to the last, of those with more than one token and a matrix of weights."""
    maps = maps_of(_telling(model, image), query)
    return [maps[i] for i in first_to_last(len(maps), count)]


def telling_calls(model: nn.Module, image: Tensor, count: int = 3) -> list[BlockCall]:
    """The calls of the same blocks, for more than one query."""
    blocks = _telling(model, image)
    return [blocks[i] for i in first_to_last(len(blocks), count)]


def _telling(model: nn.Module, image: Tensor) -> list[BlockCall]:
    return with_rows([block for block in capture(model, image) if block.tokens - block.prefix > 1])


def first_to_last(total: int, count: int) -> list[int]:
    """At most `count` indices below `total`, evenly spread, with both ends."""
    return sorted({round(i * (total - 1) / (count - 1)) for i in range(count)} & set(range(total)))


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
