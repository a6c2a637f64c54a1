"""Benchmark results as pages: docs/performance.md, docs/performance_tables.md and the README's section on speed.

Every number comes from a file in `results/`.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from sightline.bench import Report, Row
from sightline.bench.results import About
from sightline.bench.tables import Table, crossovers, finding_table, limit_of, pick, plain_tables, rate, row_tables
from tables.goals import evaluate, goal_table
from tables.markdown import table
from tables.published import SOURCE, with_public

NOTHING = "No measurements are recorded yet; run `sightline bench`."
TABLES_INTRO = """# Performance tables

Generated from the files in `results/` by `make tables`; do not edit by hand. [performance.md](performance.md) explains
how they are measured.
"""


def load_reports(folder: Path, plain: bool = False) -> dict[Path, Report]:
    """The reports in a folder, by file: those of the preset `plain`, or all others."""
    reports = {path: Report.read(path) for path in sorted(folder.glob("*.json"))}
    return {path: report for path, report in reports.items() if is_plain(report) == plain}


def is_plain(report: Report) -> bool:
    """Whether a report compares plain calls."""
    return report.about.get("preset") == "plain"


def tables_page(folder: Path) -> str:
    """docs/performance_tables.md: every row of every run."""
    reports = load_reports(folder, plain=True) | load_reports(folder)
    sections = [section(path, report) for path, report in reports.items()]
    return "\n\n".join([TABLES_INTRO.strip(), *(sections or [NOTHING])]) + "\n"


def commit_of(about: About) -> str:
    """Such as "commit 1234567, with local changes"."""
    return f"commit {about['commit'][:7]}" + (", with local changes" if about.get("clean") is False else "")


def section(path: Path, report: Report) -> str:
    """A run: how it was made, every row next to the public figures, findings, goals, figures."""
    about, name = report.about, path.name
    versions = [("torch", about.get("torch")), ("cuda", about.get("cuda")), ("triton", about.get("triton")),
                ("timm", about.get("timm"))]  # fmt: skip
    made = ", ".join(f"{key} {value}" for key, value in versions if value)
    parts = [
        f"## {about['card']}: {path.stem.split('-')[0]}",
        f"`{about['command']}`\n\n{made}; {commit_of(about)}; {about['date'][:10]}. Data: "
        f"[{name}](../results/{name}), [CSV](../results/{path.stem}.csv).",
    ]
    for dtype, best in about.get("ceilings", {}).items():
        copy, product = best["copy"] / 1e12, best["product"] / 1e12
        parts.append(f"Ceilings in this run, {dtype}: copy {copy:.3g} TB/s, matrix product {product:.3g} TFLOP/s.")
    for title, rows, found in (plain_tables if is_plain(report) else row_tables)(report.rows):
        public = not is_plain(report) and rows[0].kind != "module"
        parts += [f"### {title}", _markdown(with_public(found, rows) if public else found)]
    if is_plain(report):
        return "\n\n".join([*parts, *_not_measured(report)])
    if lines := [f"- {sentence}." for sentence in crossovers(report.rows)]:
        parts.append("Where linear overtakes SDPA:\n\n" + "\n".join(lines))
    if report.findings:
        parts += ["### First calls, new sizes, batches", _markdown(finding_table(report.findings))]
    goals = evaluate(report.rows, report.findings)
    if goals and any(f"--preset {name}" in about["command"] for name in ("goals", "soft")):
        met = f"{sum(goal.met for goal in goals)} of {len(goals)} met. \\*Public figures: {SOURCE}."
        parts += ["### Goals", met, _markdown(goal_table(goals)).replace("| NO |", "| **no** |")]
    parts += _not_measured(report)
    figures = sorted(path.parent.glob(f"{path.stem}-*.png"))
    parts += [f"![{figure.stem}](../results/{figure.name})" for figure in figures]
    return "\n\n".join(parts)


def _not_measured(report: Report) -> list[str]:
    """What failed or is missing, and why."""
    missing = [r for r in report if r.ms is None and r.images_per_s is None]
    lines = [f"- {r.case}, {r.mode}, {r.candidate}: {r.status}: {r.note}" for r in missing]
    return ["Not measured:\n\n" + "\n".join(lines)] if lines else []


def _markdown(found: Table) -> str:
    titles = [title.replace("*", "\\*") for title in found.titles]
    return table(titles, found.rows, found.text)


def speed_section(folder: Path, more: str = "docs/performance.md") -> str:
    """The README's table, one row per image size, from the runs on CUDA; `more` is linked."""
    found = _model_rows(folder)
    if found is None:
        return NOTHING
    about, rows, models = found
    sentence = (
        f"Images per second of `inline_deit_tiny` through `torch.compile`, by plain calls and by CUDA-graph replay. "
        f"Softmax is timm's DeiT-Tiny. One {about['card']}, torch {about['torch']}, {models[0].dtype}, "
        f"{commit_of(about)}. Training and operators: [{more}]({more})."
    )
    return f"{sentence}\n\n{_speed_models(rows, models)}"


def headline(folder: Path) -> str:
    """The README's sentence on how much faster InLine is, from the plain calls at the largest sizes."""
    found = [found for plain in (False, True) if (found := _model_rows(folder, plain)) is not None]
    if not found:
        return NOTHING
    gains: dict[int, float] = {}  # by size; those of the preset `plain` if it has them
    for _, rows, models in found:
        for row in models:
            softmax = pick(rows, row, lambda name: name.startswith("timm "))
            assert softmax is not None
            assert softmax.call_ms is not None
            assert row.call_ms is not None
            gains[row.height or 0] = softmax.call_ms / row.call_ms
    largest = " and ".join(f"{gains[size]:.1f}x at {size} px" for size in sorted(gains)[-2:])
    card = found[-1][0]["card"].removeprefix("NVIDIA ")
    return (
        f"On an {card}, a compiled DeiT-Tiny with InLine attention is faster than timm's with FlashAttention softmax: "
        f"{largest} (images per second, plain calls)."
    )


def _model_rows(folder: Path, plain: bool = False) -> tuple[dict[str, str], list[Row], list[Row]] | None:
    """The `about` of a CUDA run, its rows, and those of compiled inference with `inline_deit_tiny`, by size."""
    for report in load_reports(folder, plain).values():
        rows = [row for row in report if row.device == "cuda"]
        if models := _best(rows, "model", True, lambda row: row.candidate == "inline_deit_tiny"):
            return report.about, rows, sorted(models, key=lambda row: row.height or 0)
    return None


def _speed_models(rows: Sequence[Row], models: Sequence[Row]) -> str:
    lines = []
    for row in models:
        softmax = pick(rows, row, lambda name: name.startswith("timm "))
        each = (row, softmax, limit_of(rows, row))
        graph = ["-" if r is None else rate(r.graph_ms, r.batch) for r in each]
        calls = ["-" if r is None else rate(r.call_ms, r.batch) for r in each]
        lines.append([f"{row.height} px, batch {row.batch}", *calls, *graph])
    titles = ("size", "InLine", "softmax", "no attention", "InLine, graph", "softmax, graph",
              "no attention, graph")  # fmt: skip
    return table(titles, lines)


def _best(rows: Sequence[Row], kind: str, compiled: bool, wanted: Callable[[Row], bool]) -> list[Row]:
    return [r for r in rows if (r.kind, r.mode, r.compiled) == (kind, "forward", compiled) and wanted(r) and r.ms]
