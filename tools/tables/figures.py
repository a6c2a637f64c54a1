"""The figures of docs/performance.md and the README, drawn from the files in `results/`."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sightline.analysis.toy import toy_scores
from sightline.bench import Row
from sightline.bench.operators import SDPA
from sightline.bench.plots import (
    COLOURS,
    DPI,
    FONT,
    GREY,
    Panel,
    draw,
    draw_bars,
    draw_panel,
    new_figure,
    plot_all,
    series_of,
    side,
    time_per_image,
)
from tables.bench import load_reports
from tables.plain import latency_bars, plain_reports, rows_of, throughput_panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure

FIGURES = ("operators", "throughput", "memory", "hero")
PLAIN_FIGURES = ("latency", "plain_throughput")  # if plain calls were measured
NAMES = {"inline triton": "InLine", SDPA: "softmax", "soft triton": "SOFT", "soft reference": "SOFT, reference"}
BLUE, VERMILLION, GREEN = COLOURS[:3]
STYLES = {
    "InLine": (BLUE, "o"),
    "softmax": (VERMILLION, "s"),
    "no attention": (GREY, "^"),
    "SOFT": (GREEN, "D"),
    "SOFT, reference": (COLOURS[3], "v"),
    "softmax (timm)": (VERMILLION, "s"),
}
SHADES = ("#9ECAE1", "#4292C6", "#2171B5", "#08306B")  # queries, from short to long


def draw_figures(results: Path, images: Path) -> list[Path]:
    """Draw every figure; returns their paths."""
    images.mkdir(parents=True, exist_ok=True)
    rows = [row for report in load_reports(results).values() for row in report if row.device == "cuda"]
    footer = "One NVIDIA H200, bfloat16, by CUDA-graph replay; commits and versions: docs/performance_tables.md"
    panels_of = (operators(rows), throughput(rows), memory(rows))
    for name, panels in zip(FIGURES, panels_of, strict=False):
        draw(panels, footer, images / f"{name}.png", STYLES)
    hero(throughput(rows)[0], images / "hero.png")
    return [images / f"{name}.png" for name in FIGURES] + draw_plain(results, images)


def draw_plain(results: Path, images: Path) -> list[Path]:
    """Latency of one image, and throughput by plain calls, also next to each result; nothing without results."""
    reports = plain_reports(results)
    if not reports:
        return []
    for path, report in load_reports(results, plain=True).items():
        plot_all(report, path.with_suffix(""))
    rows, about = rows_of(reports), reports[0].about
    footer = f"One {about['card']}, bfloat16, plain calls, torch {about['torch']}; commits: docs/performance.md"
    draw_bars(latency_bars(rows), "milliseconds", footer, images / "latency.png", STYLES)
    draw(throughput_panels(rows), footer, images / "plain_throughput.png", STYLES)
    return [images / f"{name}.png" for name in PLAIN_FIGURES]


def throughput(rows: Sequence[Row]) -> list[Panel]:
    """Compiled DeiT-Tiny against resolution: inference and training by graph replay."""
    mine = [r for r in rows if r.case.startswith("inline_deit_tiny ") and r.compiled and r.dtype == "bfloat16"]
    titles = {"forward": "DeiT-Tiny, inference", "train": "DeiT-Tiny, training step"}
    return [
        Panel(title, "image side, pixels", "images per second",
              series_of([r for r in mine if r.mode == mode], side, lambda r: r.images_per_s, _model))
        for mode, title in titles.items()
    ]  # fmt: skip


def _model(row: Row) -> str:
    if row.candidate.startswith("timm"):
        return "softmax"
    return "no attention" if " none" in row.candidate else "InLine"


def operators(rows: Sequence[Row]) -> list[Panel]:
    """InLine, SOFT and softmax against the number of tokens, forward and backward."""
    both = [r for r in rows if r.kind == "op" and r.mode == "forward+backward" and r.candidate in NAMES]
    inline = [r for r in both if (r.heads, r.dim) == (6, 32)]
    soft = [r for r in both if r.case.startswith("soft_") and r.candidate != "soft reference"]
    name: Callable[[Row], str] = lambda row: NAMES[row.candidate]  # noqa: E731
    floor = {float(r.tokens): r.floor_ms / r.batch * 1e3 for r in inline if r.tokens and r.floor_ms}
    return [
        Panel("InLine, 6 heads of 32, forward + backward", "tokens", "µs per image",
              series_of(inline, lambda r: r.tokens, time_per_image, name), sorted(floor.items())),
        Panel("SOFT with 49 landmarks, 2 heads of 32, forward + backward", "tokens", "µs per image",
              series_of(soft, lambda r: r.tokens, time_per_image, name)),
    ]  # fmt: skip


def memory(rows: Sequence[Row]) -> list[Panel]:
    """Peak memory per image against size: the SOFT operator next to its reference, and a model in training."""
    ops = [r for r in rows if r.case.startswith("soft_") and r.kind == "op" and r.mode == "forward+backward"]
    ops = [r for r in ops if r.candidate in NAMES]
    train = [r for r in rows if r.case.startswith("inline_deit_tiny ") and r.compiled and r.mode == "train"]
    models = series_of(train, side, _mib, _model)
    models = {name: models[name] for name in ("softmax", "InLine")}
    operator = series_of(ops, lambda r: r.tokens, _mib, lambda r: NAMES[r.candidate])
    return [
        Panel("SOFT operator, forward + backward", "tokens", "MiB per image", operator),
        Panel("DeiT-Tiny, training step", "image side, pixels", "MiB per image", models),
    ]


def _mib(row: Row) -> float | None:
    return row.memory_mib and row.memory_mib / row.batch


def hero(speed: Panel, path: Path) -> None:
    """The README's picture: throughput against resolution, and scores of four collinear queries."""
    figure = new_figure(14, 4.4)
    left, right = figure.subfigures(1, 2, width_ratios=(1, 1.4), wspace=0.04)
    _headline(left, "Fast at high resolution", "DeiT-Tiny inference, compiled, one H200, bfloat16")
    draw_panel(left.add_subplot(), speed._replace(title=""), STYLES)
    _headline(right, "InLine tells queries apart that linear attention confuses",
              "four queries that differ in length only, scores over four keys")  # fmt: skip
    axes = right.subplots(1, 3, sharey=True)
    for axis, (name, scores) in zip(axes, toy_scores().items(), strict=True):
        _scores(axis, {"softmax": "softmax", "linear": "linear", "inline": "InLine"}[name], scores.tolist())
    axes[0].set_ylabel("attention score")
    figure.savefig(path, dpi=DPI, metadata={"Software": None})


def _headline(part: "SubFigure", title: str, line: str) -> None:
    part.suptitle(f"{title}\n", x=0.01, ha="left", fontsize=FONT + 3, fontweight="bold")
    part.text(0.01, 0.9, line, fontsize=FONT, color=GREY)


def _scores(axis: "Axes", name: str, rows: Sequence[Sequence[float]]) -> None:
    """The scores of each query over the keys; longer queries are darker."""
    keys = range(1, len(rows[0]) + 1)
    for i, row in enumerate(rows):
        axis.plot(keys, row, color=SHADES[i], marker="o", markersize=5, linewidth=1.8, label=f"query {i + 1}")
    axis.set(ylim=(0, 0.48), xlim=(0.7, len(rows[0]) + 0.3), xlabel="key", xticks=list(keys))
    axis.set_title(name, fontsize=FONT + 1)
    axis.grid(True, axis="y", color="0.92")
    axis.spines[["top", "right"]].set_visible(False)
    if name == "softmax":
        axis.legend(frameon=False, fontsize=FONT - 2, loc="upper right", handlelength=1.2, borderaxespad=0)
