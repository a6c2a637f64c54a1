"""Figures of a run: time, throughput and memory against size, throughput against the window."""

import math
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sightline.bench.operators import SDPA
from sightline.bench.results import COMPILED, EAGER, Report, Row
from sightline.util.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Series = dict[str, list[tuple[float, float]]]
Bars = dict[str, dict[str, dict[str, float]]]  # values by panel, name and group
Styles = dict[str, tuple[str, str]]  # color and marker by name
# Okabe and Ito's colors, which people with color vision deficiencies can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "os^Dvp*"
GREY = "#6E6E6E"
FONT, DPI = 10.0, 130
COLUMNS, WIDTH, HEIGHT = 2, 6.6, 4.3  # panels side by side, and the inches of each


class Panel(NamedTuple):
    """One diagram: lines by name, and the floor as a dashed line without markers."""

    title: str
    x: str
    y: str
    series: Series
    floor: Sequence[tuple[float, float]] = ()


def new_figure(width: float, height: float) -> "Figure":
    """A figure without a display, in inches.

    Raises:
        InputError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError("plot: matplotlib is missing; pip install matplotlib") from error
    return Figure(figsize=(width, height), layout="constrained")


def plot_all(report: Report, stem: Path) -> list[Path]:
    """Draw every figure that has enough rows, as `stem`-NAME.png; a line needs two points."""
    drawn = []
    about = report.about
    footer = f"{about['card']}, torch {about['torch']}, commit {about['commit'][:10]}"
    for name, panels in _figures(report.rows).items():
        panels = [panel for panel in panels if any(len(points) > 1 for points in panel.series.values())]
        if panels:
            path = stem.with_name(f"{stem.name}-{name}.png")
            draw(panels, footer, path)
            drawn.append(path)
    if bars := bars_of(report.rows, lambda row: f"{row.case}, one image", lambda row: row.candidate):
        drawn.append(stem.with_name(f"{stem.name}-latency.png"))
        draw_bars(bars, "milliseconds", footer, drawn[-1])
    return drawn


def bars_of(rows: Sequence[Row], panel: Callable[[Row], str], name: Callable[[Row], str]) -> Bars:
    """The latency of models by panel, name and how they are called."""
    found: Bars = {}
    for row in rows:
        if row.mode == "latency" and row.call_ms:
            found.setdefault(panel(row), {}).setdefault(name(row), {})[row.how] = row.call_ms
    return found


def _figures(rows: Sequence[Row]) -> dict[str, list[Panel]]:
    """Panels by the name of the figure."""
    ops, models = ([row for row in rows if row.kind == kind and row.ms] for kind in ("op", "model"))
    found: dict[str, list[Panel]] = {"tokens": [], "resolution": [], "memory": [], "window": []}
    for (heads, dim, mode, dtype), part in _groups(ops, lambda r: (r.heads, r.dim, r.mode, r.dtype)).items():
        series = series_of(part, lambda r: r.tokens, time_per_image)
        floor = {r.tokens: r.floor_ms / r.batch * 1e3 for r in part if r.candidate != SDPA and r.tokens and r.floor_ms}
        title = f"{mode}, {dtype}, {heads} heads of {dim}"
        found["tokens"].append(Panel(title, "tokens", "µs per image", series, sorted(floor.items())))
    for (model, mode, how, dtype), part in _groups(models, _model_key).items():
        title = f"{model}, {mode}{'' if how == EAGER else ', compiled' if how == COMPILED else f', {how}'}, {dtype}"
        whole = [row for row in part if row.window is None]
        speed = series_of(whole, side, lambda r: r.images_per_s)
        found["resolution"].append(Panel(title, "image side, pixels", "images per second", speed))
        memory = series_of(whole, side, lambda r: r.memory_mib and r.memory_mib / r.batch)
        found["memory"].append(Panel(title, "image side, pixels", "MiB per image", memory))
        windows = [row for row in part if row.window is not None]
        for (height, width), windowed in _groups(windows, lambda r: (r.height, r.width)).items():
            lines = series_of(
                windowed, lambda r: r.window, lambda r: r.images_per_s, lambda r: r.candidate.rpartition(" w")[0]
            )
            sized = f"{title}, {height}x{width}"
            found["window"].append(Panel(sized, "window side, tokens", "images per second", lines))
    return found


def time_per_image(row: Row) -> float | None:
    """Microseconds."""
    return row.ms and row.ms / row.batch * 1e3


def side(row: Row) -> float | None:
    """The side of a square image of the same size."""
    return None if row.height is None or row.width is None else (row.height * row.width) ** 0.5


def _model_key(row: Row) -> tuple[object, ...]:
    return row.case.rpartition(" ")[0], row.mode, row.how, row.dtype


def _groups(rows: Sequence[Row], key: Callable[[Row], tuple[object, ...]]) -> dict[tuple[object, ...], list[Row]]:
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def series_of(
    rows: Sequence[Row],
    x: Callable[[Row], float | None],
    y: Callable[[Row], float | None],
    name: Callable[[Row], str] = lambda row: row.candidate,
) -> Series:
    """Sorted points of every line; rows without a value are left out."""
    found: dict[str, dict[float, float]] = {}
    for row in rows:
        position, value = x(row), y(row)
        if position is not None and value is not None:
            found.setdefault(name(row), {})[position] = value
    return {label: sorted(points.items()) for label, points in found.items()}


def draw(panels: Sequence[Panel], footer: str, path: Path, styles: Styles | None = None) -> None:
    """Draw panels side by side; a line has the same color wherever its name occurs."""
    lines = -(-len(panels) // COLUMNS)
    names = list(dict.fromkeys(name for panel in panels for name in panel.series))
    styles = styles or dict(zip(names, zip(cycle(COLOURS), cycle(MARKERS), strict=False), strict=False))
    figure = new_figure(WIDTH * min(COLUMNS, len(panels)), HEIGHT * lines)
    for i, panel in enumerate(panels, 1):
        draw_panel(figure.add_subplot(lines, min(COLUMNS, len(panels)), i), panel, styles)
    figure.supxlabel(footer, x=0.01, ha="left", fontsize=FONT - 3, color=GREY)
    figure.savefig(path, dpi=DPI, metadata={"Software": None})


def draw_bars(bars: Bars, y: str, footer: str, path: Path, styles: Styles | None = None) -> None:
    """Draw panels side by side: a group per way to call, a bar per name."""
    names = list(dict.fromkeys(name for found in bars.values() for name in found))
    styles = styles or dict(zip(names, zip(cycle(COLOURS), cycle(MARKERS), strict=False), strict=False))
    figure = new_figure(WIDTH * max(1, len(bars)), HEIGHT)
    for i, (title, found) in enumerate(bars.items(), 1):
        axis = figure.add_subplot(1, len(bars), i)
        groups = list(dict.fromkeys(group for values in found.values() for group in values))
        width = 0.8 / len(found)
        for j, (name, values) in enumerate(found.items()):
            places = [k + (j - (len(found) - 1) / 2) * width for k in range(len(groups))]
            heights = [values.get(group, 0.0) for group in groups]
            drawn = axis.bar(places, heights, width, color=styles[name][0], label=name)
            axis.bar_label(drawn, fmt="%.1f", fontsize=FONT - 3)
        axis.set_xticks(range(len(groups)), groups)
        axis.set_ylabel(y)
        _finish(axis, title)
    figure.supxlabel(footer, x=0.01, ha="left", fontsize=FONT - 3, color=GREY)
    figure.savefig(path, dpi=DPI, metadata={"Software": None})


def _finish(axis: "Axes", title: str) -> None:
    axis.set_title(title, fontsize=FONT + 1, loc="left")
    axis.grid(True, axis="y", color="0.92")
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=FONT - 1)


def draw_panel(axis: "Axes", panel: Panel, styles: Styles) -> None:
    """Lines and axes; a value axis that spans more than a factor of eight is logarithmic."""
    for name, points in panel.series.items():
        colour, marker = styles[name]
        axis.plot(*zip(*points, strict=True), color=colour, marker=marker, markersize=5, linewidth=1.8, label=name)
    if panel.floor:
        axis.plot(*zip(*panel.floor, strict=True), color=GREY, linestyle="--", linewidth=1.2, label="floor")
    positions = sorted({position for points in panel.series.values() for position, _ in points})
    values = [value for points in panel.series.values() for _, value in points]
    axis.set(xscale="log", xlabel=panel.x, ylabel=panel.y)
    if max(values) > 8 * min(values):
        axis.set_yscale("log")
    else:
        axis.set_ylim(bottom=0)
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    shown = apart(positions)
    axis.set_xticks(shown, [f"{position:,g}" for position in shown])
    axis.minorticks_off()
    _finish(axis, panel.title)


def apart(positions: Sequence[float]) -> list[float]:
    """Those of some increasing positions whose labels do not touch on a logarithmic axis; first and last are kept.

    >>> apart([1, 1.1, 10, 90, 100])
    [1, 10, 100]
    """
    if len(positions) < 2:
        return list(positions)
    gap = 0.11 * math.log(positions[-1] / positions[0])
    kept = [positions[0]]
    for position in positions[1:-1]:
        if math.log(position / kept[-1]) >= gap and math.log(positions[-1] / position) >= gap:
            kept.append(position)
    return [*kept, positions[-1]]
