"""Benchmark results as pages: docs/performance.md, docs/performance_tables.md and the README's section on speed.

Every number comes from a file in `results/`.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from sightline.bench import Report, Row, tables
from sightline.bench.goals import evaluate, limit_of, pick
from sightline.bench.operators import SDPA
from sightline.bench.published import SOURCE
from sightline.bench.run_ops import crossovers
from sightline.bench.tables import Table, number, rate
from tables.markdown import table

NOTHING = "No measurements are recorded yet; `sightline bench` makes them."
TABLES_INTRO = """# Performance tables

Generated from the files in `results/` by `make tables`; do not edit by hand. [performance.md](performance.md) explains
how the numbers are made.
"""


def load_reports(folder: Path) -> list[tuple[str, Report]]:
    """The reports in a folder, by file name."""
    return [(path.name, Report.read(path)) for path in sorted(folder.glob("*.json"))] if folder.is_dir() else []


def tables_page(folder: Path) -> str:
    """docs/performance_tables.md: every row of every run."""
    sections = [_section(name, report, folder) for name, report in load_reports(folder)]
    return "\n\n".join([TABLES_INTRO.strip(), *(sections or [NOTHING])]) + "\n"


def _section(name: str, report: Report, folder: Path) -> str:
    about = report.about
    state = ", with local changes" if about.get("clean") is False else ""
    versions = [("torch", about.get("torch")), ("cuda", about.get("cuda")), ("triton", about.get("triton")),
                ("timm", about.get("timm"))]  # fmt: skip
    made = ", ".join(f"{key} {value}" for key, value in versions if value)
    parts = [
        f"## {about['card']}: {Path(name).stem.split('-')[0]}",
        f"`{about['command']}`\n\n{made}; commit {about['commit']}{state}; {about['date'][:10]}. Data: "
        f"[{name}](../results/{name}), [CSV](../results/{Path(name).with_suffix('.csv')}).",
    ]
    for dtype, best in about.get("ceilings", {}).items():
        copy, product = best["copy"] / 1e12, best["product"] / 1e12
        parts.append(f"Ceilings in this run, {dtype}: copy {copy:.3g} TB/s, matrix product {product:.3g} TFLOP/s.")
    for kind, title, make in (("op", "Operators", tables.op_table), ("model", "Models", tables.model_table)):
        rows = [row for row in report if row.kind == kind]
        for dtype in dict.fromkeys(row.dtype for row in rows):
            parts += [f"### {title}, {dtype}", _markdown(make([row for row in rows if row.dtype == dtype]))]
    if lines := [f"- {found}." for found in crossovers(report.rows)]:
        parts.append("Where linear overtakes SDPA:\n\n" + "\n".join(lines))
    if report.findings:
        parts += ["### First calls, new sizes, batches", _markdown(tables.finding_table(report.findings))]
    goals = evaluate(report.rows, report.findings)
    if goals and any(f"--preset {name}" in about["command"] for name in ("goals", "soft")):
        met = f"{sum(goal.met for goal in goals)} of {len(goals)} met. \\*Public figures: {SOURCE}."
        parts += ["### Goals", met, _markdown(tables.goal_table(goals)).replace("| NO |", "| **no** |")]
    wrong = [f"- {r.case}, {r.mode}, {r.candidate}: {r.status}: {r.note}" for r in report if r.ms is None]
    if wrong:
        parts.append("Not measured:\n\n" + "\n".join(wrong))
    parts += [f"![{path.stem}](../results/{path.name})" for path in sorted(folder.glob(f"{Path(name).stem}-*.png"))]
    return "\n\n".join(parts)


def _markdown(found: Table) -> str:
    titles = [title.replace("*", "\\*") for title in found.titles]
    return table(titles, found.rows, found.text)


def speed_section(folder: Path, more: str = "docs/performance.md") -> str:
    """The README's short tables, one row per shape and one per size, from the runs on CUDA; `more` is linked."""
    found = [(report, row) for _, report in load_reports(folder) for row in report if row.device == "cuda"]
    rows = [row for _, row in found]
    ops = _best(rows, "op", False, lambda row: row.candidate == "inline triton")
    models = _best(rows, "model", True, lambda row: row.candidate == "inline_deit_tiny")
    if not ops and not models:
        return NOTHING
    origin = {id(row): report.about for report, row in found}
    about = origin[id((ops or models)[0])]
    parts = [f"One {about['card']}, torch {about['torch']}, {rows[0].dtype}. More, and training: "
             f"[{more}]({more})."]  # fmt: skip
    if ops:
        parts += [f"Operators, milliseconds by CUDA-graph replay, commit {_commit(origin[id(ops[0])]['commit'])}. "
                  "*x floor*: relative to moving the tensors through memory once.", _speed_ops(rows, ops)]  # fmt: skip
    if models:
        parts += [f"`inline_deit_tiny` through `torch.compile`, images per second by CUDA-graph replay and by plain "
                  f"calls, commit {_commit(origin[id(models[0])]['commit'])}. Softmax is timm's DeiT-Tiny.",
                  _speed_models(rows, models)]  # fmt: skip
    return "\n\n".join(parts)


def _commit(commit: str) -> str:
    return commit[:7]


def _speed_ops(rows: Sequence[Row], ops: Sequence[Row]) -> str:
    lines = []
    for row in ops:
        sdpa, both = _other(rows, row, SDPA), _same_case(rows, row, "forward+backward")
        sdpa_both = _other(rows, both, SDPA) if both is not None else None
        cells = [number(row.ms), _ms(sdpa), number(row.of_floor, 2), _ms(both), _ms(sdpa_both)]
        cells.append(number(both.of_floor if both else None, 2))
        lines.append([f"{row.batch} x {row.heads} x {row.dim}, {row.tokens:,} tokens", *cells])
    titles = ("batch x heads x dim, tokens", "InLine", "SDPA", "x floor", "InLine with backward", "SDPA with backward",
              "x floor")  # fmt: skip
    return table(titles, lines)


def _speed_models(rows: Sequence[Row], models: Sequence[Row]) -> str:
    lines = []
    for row in models:
        softmax = pick(rows, row, lambda name: name.startswith("timm "))
        each = (row, softmax, limit_of(rows, row))
        graph = ["-" if r is None else rate(r.graph_ms, r.batch) for r in each]
        calls = ["-" if r is None else rate(r.call_ms, r.batch) for r in each]
        lines.append([f"{row.height} px, batch {row.batch}", *graph, *calls])
    titles = ("size", "InLine, graph", "softmax, graph", "no attention, graph", "InLine, calls", "softmax, calls",
              "no attention, calls")  # fmt: skip
    return table(titles, lines)


def _best(rows: Sequence[Row], kind: str, compiled: bool, wanted: Callable[[Row], bool]) -> list[Row]:
    return [r for r in rows if (r.kind, r.mode, r.compiled) == (kind, "forward", compiled) and wanted(r) and r.ms]


def _other(rows: Sequence[Row], row: Row, candidate: str) -> Row | None:
    return pick(rows, row, lambda name: name == candidate)


def _same_case(rows: Sequence[Row], row: Row, mode: str) -> Row | None:
    key = (row.kind, row.case, row.candidate, row.compiled, row.dtype, mode)
    return next((r for r in rows if (r.kind, r.case, r.candidate, r.compiled, r.dtype, r.mode) == key), None)


def _ms(row: Row | None) -> str:
    return number(None if row is None else row.ms)
