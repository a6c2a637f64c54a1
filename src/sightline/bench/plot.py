"""Figures of a run: time, throughput and memory against size, throughput against the window."""

from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from sightline.bench.operators import SDPA
from sightline.bench.results import Report, Row

Series = dict[str, list[tuple[float, float]]]
MARKERS = "os^Dvp*"


def require() -> Any:
    """matplotlib without a display, or one line that says what to install."""
    try:
        import matplotlib
    except ImportError as error:
        raise ValueError("--plot needs matplotlib: pip install matplotlib") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def plot_all(report: Report, stem: Path) -> list[Path]:
    """Every figure that the rows are enough for, as `stem`-NAME.png; a line needs two points."""
    drawn = []
    footer = f"{report.about['card']}, torch {report.about['torch']}, commit {str(report.about['commit'])[:10]}"
    for name, panels in _figures(report.rows).items():
        panels = [panel for panel in panels if any(len(points) > 1 for points in panel.series.values())]
        if panels:
            path = stem.with_name(f"{stem.name}-{name}.png")
            _draw(panels, footer, path)
            drawn.append(path)
    return drawn


class Panel:
    """One diagram: lines by name."""

    def __init__(self, title: str, x: str, y: str, series: Series, floor: Sequence[tuple[float, float]] = ()) -> None:
        self.title, self.x, self.y, self.series, self.floor = title, x, y, series, sorted(floor)


def _figures(rows: Sequence[Row]) -> dict[str, list[Panel]]:
    """Panels by the name of the figure."""
    ops, models = ([row for row in rows if row.kind == kind and row.ms] for kind in ("op", "model"))
    found: dict[str, list[Panel]] = {"tokens": [], "resolution": [], "memory": [], "window": []}
    for (heads, dim, mode, dtype), part in _groups(ops, lambda r: (r.heads, r.dim, r.mode, r.dtype)).items():
        title = f"{mode}, {dtype}, {heads} heads of {dim}"
        series = _series(part, lambda r: r.tokens, lambda r: r.ms and r.ms / r.batch * 1e3)
        floor = [(r.tokens, r.floor_ms / r.batch * 1e3) for r in part if r.entrant != SDPA and r.tokens and r.floor_ms]
        found["tokens"].append(Panel(title, "tokens", "µs an image", series, list(dict(floor).items())))
    for (model, mode, compiled, dtype), part in _groups(models, _model_key).items():
        title = f"{model}, {mode}{', compiled' if compiled else ''}, {dtype}"
        whole = [row for row in part if row.window is None]
        speed = _series(whole, _side, lambda r: r.images_per_s)
        found["resolution"].append(Panel(title, "side of the image, pixels", "images a second", speed))
        memory = _series(whole, _side, lambda r: r.memory_mib and r.memory_mib / r.batch)
        found["memory"].append(Panel(title, "side of the image, pixels", "MiB an image", memory))
        for size, windowed in _groups([r for r in part if r.window], lambda r: f"{r.height}x{r.width}").items():
            lines = _series(
                windowed, lambda r: r.window, lambda r: r.images_per_s, lambda r: r.entrant.rpartition(" w")[0]
            )
            found["window"].append(Panel(f"{title}, {size}", "side of the window, tokens", "images a second", lines))
    return found


def _model_key(row: Row) -> tuple[str, str, bool, str]:
    return row.case.rpartition(" ")[0], row.mode, row.compiled, row.dtype


def _without_window(row: Row) -> str:
    return row.entrant.rpartition(" w")[0]


def _side(row: Row) -> float | None:
    return None if row.height is None or row.width is None else (row.height * row.width) ** 0.5


def _groups(rows: Sequence[Row], key: Callable[[Row], Any]) -> dict[Any, list[Row]]:
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def _series(
    rows: Sequence[Row],
    x: Callable[[Row], float | None],
    y: Callable[[Row], float | None],
    name: Callable[[Row], str] = lambda row: row.entrant,
) -> Series:
    """Sorted points of every line; rows without a value are left out."""
    found: dict[str, dict[float, float]] = {}
    for row in rows:
        place, value = x(row), y(row)
        if place is not None and value is not None:
            found.setdefault(name(row), {})[place] = value
    return {label: sorted(points.items()) for label, points in found.items()}


def _draw(panels: Sequence[Panel], footer: str, path: Path) -> None:
    pyplot = require()
    columns = min(2, len(panels))
    lines = -(-len(panels) // columns)
    figure, axes = pyplot.subplots(lines, columns, figsize=(6.4 * columns, 4.4 * lines), squeeze=False)
    for axis, panel in zip(axes.flat, panels, strict=False):
        for (label, points), marker in zip(panel.series.items(), cycle(MARKERS), strict=False):
            axis.plot(*zip(*points, strict=True), marker=marker, markersize=4, linewidth=1.4, label=label)
        if panel.floor:
            axis.plot(*zip(*panel.floor, strict=True), color="0.5", linestyle="--", linewidth=1, label="floor")
        places = sorted({place for points in panel.series.values() for place, _ in points})
        values = [value for points in panel.series.values() for _, value in points]
        axis.set(xscale="log", xlabel=panel.x, ylabel=panel.y)
        if max(values) > 8 * min(values):
            axis.set_yscale("log")
        else:
            axis.set_ylim(bottom=0)
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        axis.set_xticks(places, [f"{place:g}" for place in places], rotation=0 if len(places) < 7 else 90)
        axis.minorticks_off()
        axis.set_title(panel.title, fontsize=10)
        axis.grid(True, which="major", color="0.9")
        axis.legend(fontsize=8, frameon=False)
    for axis in list(axes.flat)[len(panels) :]:
        axis.set_visible(False)
    figure.text(0.01, 0.005, footer, fontsize=7, color="0.4")
    figure.tight_layout(rect=(0, 0.02, 1, 1))
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
