"""Figures of a run: time, throughput and memory against size, throughput against the window."""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

from sightline.bench.operators import SDPA
from sightline.bench.results import Report, Row
from sightline.util.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Points = list[tuple[float, float]]
Series = dict[str, Points]
Styles = dict[str, tuple[str, str]]  # color and marker by name
# Okabe and Ito's colors, which people with color vision deficiencies can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "os^Dvp*"
GREY = "#6E6E6E"
FONT = 10.0
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Panel:
    """One diagram: lines by name, and the floor as a dashed line without markers."""

    title: str
    x: str
    y: str
    series: Series
    floor: Sequence[tuple[float, float]] = ()


def require_matplotlib() -> ModuleType:
    """matplotlib's pyplot without a display, or a one-line error with the package to install."""
    try:
        import matplotlib
    except ImportError as error:
        raise InputError("plot: matplotlib is missing; pip install matplotlib") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


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
    return drawn


def _figures(rows: Sequence[Row]) -> dict[str, list[Panel]]:
    """Panels by the name of the figure."""
    ops, models = ([row for row in rows if row.kind == kind and row.ms] for kind in ("op", "model"))
    found: dict[str, list[Panel]] = {"tokens": [], "resolution": [], "memory": [], "window": []}
    for (heads, dim, mode, dtype), part in _groups(ops, lambda r: (r.heads, r.dim, r.mode, r.dtype)).items():
        series = series_of(part, lambda r: r.tokens, time_per_image)
        floor = {r.tokens: r.floor_ms / r.batch * 1e3 for r in part if r.candidate != SDPA and r.tokens and r.floor_ms}
        title = f"{mode}, {dtype}, {heads} heads of {dim}"
        found["tokens"].append(Panel(title, "tokens", "µs per image", series, sorted(floor.items())))
    for (model, mode, compiled, dtype), part in _groups(models, _model_key).items():
        title = f"{model}, {mode}{', compiled' if compiled else ''}, {dtype}"
        whole = [row for row in part if row.window is None]
        speed = series_of(whole, side, lambda r: r.images_per_s)
        found["resolution"].append(Panel(title, "image side, pixels", "images per second", speed))
        memory = series_of(whole, side, lambda r: r.memory_mib and r.memory_mib / r.batch)
        found["memory"].append(Panel(title, "image side, pixels", "MiB per image", memory))
        for size, windowed in _groups([r for r in part if r.window], lambda r: f"{r.height}x{r.width}").items():
            lines = series_of(windowed, lambda r: r.window, lambda r: r.images_per_s, _without_window)
            found["window"].append(Panel(f"{title}, {size}", "window side, tokens", "images per second", lines))
    return found


def time_per_image(row: Row) -> float | None:
    """Microseconds."""
    return row.ms and row.ms / row.batch * 1e3


def side(row: Row) -> float | None:
    """The side of a square image of the same size."""
    return None if row.height is None or row.width is None else (row.height * row.width) ** 0.5


def _model_key(row: Row) -> tuple[str, str, bool, str]:
    return row.case.rpartition(" ")[0], row.mode, row.compiled, row.dtype


def _without_window(row: Row) -> str:
    return row.candidate.rpartition(" w")[0]


def _groups(rows: Sequence[Row], key: Callable[[Row], K]) -> dict[K, list[Row]]:
    groups: dict[K, list[Row]] = {}
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


def draw(panels: Sequence[Panel], footer: str, path: Path, styles: Styles | None = None, columns: int = 2) -> None:
    """Draw panels side by side, each line labeled at its right end, in the same color wherever its name occurs."""
    pyplot = require_matplotlib()
    columns = min(columns, len(panels))
    lines = -(-len(panels) // columns)
    names = list(dict.fromkeys(name for panel in panels for name in panel.series))
    styles = styles or dict(zip(names, zip(cycle(COLOURS), cycle(MARKERS), strict=False), strict=False))
    with pyplot.rc_context({"font.size": FONT, "axes.spines.top": False, "axes.spines.right": False}):
        figure, axes = pyplot.subplots(lines, columns, figsize=(6.6 * columns, 4.3 * lines), squeeze=False)
        for axis, panel in zip(axes.flat, panels, strict=False):
            draw_panel(axis, panel, styles)
        for axis in list(axes.flat)[len(panels) :]:
            axis.set_visible(False)
        figure.tight_layout(rect=(0, 0.04 / lines, 1, 1), w_pad=1 + 0.6 * max(map(len, names)))  # room for the names
        figure.canvas.draw()  # labels are placed by the final size of the axes
        for axis, panel in zip(axes.flat, panels, strict=False):
            label_lines(axis, panel, styles)
        figure.text(0.01, 0.01 / lines, footer, fontsize=FONT - 3, color=GREY)
        figure.savefig(path, dpi=130, bbox_inches="tight", metadata={"Software": None})
        pyplot.close(figure)


def draw_panel(axis: "Axes", panel: Panel, styles: Styles) -> None:
    """Lines and axes; a value axis that spans more than a factor of eight is logarithmic."""
    for name, points in panel.series.items():
        colour, marker = styles[name]
        axis.plot(*zip(*points, strict=True), color=colour, marker=marker, markersize=5, linewidth=1.8)
    if panel.floor:
        axis.plot(*zip(*panel.floor, strict=True), color=GREY, linestyle="--", linewidth=1.2)
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
    axis.set_title(panel.title, fontsize=FONT + 1, loc="left")
    axis.grid(True, axis="y", color="0.92")
    axis.set_axisbelow(True)


def label_lines(axis: "Axes", panel: Panel, styles: Styles) -> None:
    """Write the name of every line to the right of its end, moved apart where lines end close to each other."""
    ends = [(points[-1], name, styles[name][0]) for name, points in panel.series.items()]
    ends += [(panel.floor[-1], "floor", GREY)] if panel.floor else []
    inverse = axis.transAxes.inverted()
    heights = [inverse.transform(axis.transData.transform(end))[1] for end, _, _ in ends]
    gap = 1.3 * (FONT - 1) / 72 * axis.figure.dpi / axis.get_window_extent().height
    for (_, name, colour), height in zip(ends, spread(heights, gap), strict=True):
        axis.annotate(name, (1.02, height), xycoords="axes fraction", color=colour, fontsize=FONT - 1, va="center")


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


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Heights at least `gap` apart, in the same order and as close to the given ones as a few passes get them.

    >>> spread([0.5, 0.5, 0.1], 0.1)
    [0.45, 0.55, 0.1]
    """
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    placed = [heights[i] for i in order]
    for _ in range(200):
        for i in range(len(placed) - 1):
            missing = gap - (placed[i + 1] - placed[i])
            if missing > 1e-9:
                placed[i] -= missing / 2
                placed[i + 1] += missing / 2
    return [round(placed[order.index(i)], 6) for i in range(len(heights))]
