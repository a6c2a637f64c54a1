"""Result files as pages: `docs/performance.md` and the README's section on speed. Every number comes from a file."""

from collections.abc import Callable, Sequence
from pathlib import Path

from sightline.bench.goals import evaluate, limit_of
from sightline.bench.operators import SDPA
from sightline.bench.published import SOURCE, public_figure
from sightline.bench.results import Report, Row
from sightline.bench.run_ops import crossovers

NOTHING = "No measurements are recorded yet; `sightline bench` makes them."
INTRO = """# Performance

Generated from the files in `results/` by `make tables`; do not edit it by hand. How the numbers are made:

- All entrants of a table row ran in the same process, in turns. *graph* is the time by CUDA-graph replay, which leaves
  launches out, *calls* by plain calls. A time is the median of several rounds.
- *floor* is the time to move the operator's tensors once (4 forward, 11 forward and backward, and the weights of the
  residual; 3 and 8 for SOFT, whose queries are its keys) at the copy speed that the same run measured.
- *sdpa* is torch's scaled_dot_product_attention. *move* is plain torch that moves as many tensors as the floor counts.
- *limit* is the same network with its attention removed: values go straight to the projection.
- Every operator was compared with the float32 reference, output and gradients, before it was timed.
- Inference has its weights in the type of the table. A training step is autocast, cross entropy, backward and fused
  AdamW on float32 weights, with a quarter of the batch (SOFT: half, as published)."""


def load_reports(folder: Path) -> list[tuple[str, Report]]:
    """The reports in a folder, by name; of several with one name, numbered by the command, the last."""
    return [(path.name, Report.read(path)) for path in sorted(folder.glob("*.json"))] if folder.is_dir() else []


def performance_page(folder: Path, log: Path) -> str:
    """The whole page: results, then the log of what was tried."""
    reports = load_reports(folder)
    parts = [INTRO, *(_section(name, report, folder) for name, report in reports)]
    if not reports:
        parts.append(NOTHING)
    if log.is_file():
        parts.append(log.read_text().strip())
    return "\n\n".join(parts) + "\n"


def _section(name: str, report: Report, folder: Path) -> str:
    about = report.about
    state = {True: "", False: ", with local changes", None: ""}[about.get("clean")]
    versions = ", ".join(f"{key} {about[key]}" for key in ("torch", "cuda", "triton", "timm") if about.get(key))
    parts = [
        f"## {about['card']}: {Path(name).stem.split('-')[0]}",
        f"`{about['command']}`\n\n{versions}; commit {about['commit']}{state}; {about['date'][:10]}. Data: "
        f"[{name}](../results/{name}), [CSV](../results/{Path(name).with_suffix('.csv')}).",
    ]
    for dtype, found in about.get("ceilings", {}).items():
        parts.append(f"Ceilings in this run, {dtype}: copy {found['copy'] / 1e12:.3g} TB/s, matrix product "
                     f"{found['product'] / 1e12:.3g} TFLOP/s.")  # fmt: skip
    ops, models = ([row for row in report.rows if row.kind == kind] for kind in ("op", "model"))
    if ops:
        parts += ["### Operators", op_table(ops), *_crossover_lines(ops)]
    if models:
        parts += ["### Models", model_table(models)]
    if report.findings:
        parts += ["### First calls, new sizes, batches", _findings_table(report)]
    if goals := _goal_table(report):
        parts += ["### Goals", goals]
    parts += _wrong_lines(report.rows)
    parts += [f"![{path.stem}](../results/{path.name})" for path in sorted(folder.glob(f"{Path(name).stem}-*.png"))]
    return "\n\n".join(parts)


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; all columns but the first to the right."""
    lines = [titles, ["---"] + ["---:"] * (len(titles) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def op_table(rows: Sequence[Row]) -> str:
    """A line an entrant, in the order of the run."""
    titles = ("shape", "mode", "entrant", "graph ms", "calls ms", "floor ms", "x floor", "TB/s", "MiB",
              "public ms, measured elsewhere")  # fmt: skip
    lines = []
    for row in rows:
        public = public_figure(row)
        cells = [number(row.graph_ms), number(row.call_ms), number(row.floor_ms), number(row.of_floor, 2),
                 number(row.bandwidth_tb_s, 2), number(row.memory_mib, 0)]  # fmt: skip
        figures = cells if row.ms else [row.status, *["-"] * 5]
        lines.append([f"{row.case} ({row.tokens:,} tokens)", f"{row.mode} {row.dtype}", row.entrant, *figures,
                      number(public)])  # fmt: skip
    return table(titles, lines)


def model_table(rows: Sequence[Row]) -> str:
    """A line an entrant, in the order of the run."""
    titles = ("model, size", "mode", "entrant", "batch", "images/s, graph", "images/s, calls", "of limit", "MiB",
              "public images/s, measured elsewhere")  # fmt: skip
    lines = []
    for row in rows:
        limit = limit_of(rows, row)
        public = public_figure(row)
        mode = f"{row.mode}{', compiled' if row.compiled else ''} {row.dtype}"
        share = f"{limit.ms / row.ms:.1%}" if limit is not None and limit.ms and row.ms else "-"
        figures = [images(row.graph_ms, row.batch), images(row.call_ms, row.batch), share, number(row.memory_mib, 0)]
        figures = figures if row.ms else [row.status, *["-"] * 3]
        shown = "-" if public is None else f"{public:,.0f}"
        lines.append([row.case, mode, row.entrant, str(row.batch), *figures, shown])
    return table(titles, lines)


def _findings_table(report: Report) -> str:
    rows = [
        [item.name, f"{item.value:.3g} {item.unit}", "-" if item.limit is None else f"{item.limit:g}", item.note or "-"]
        for item in report.findings
    ]
    return table(("what", "measured", "limit", "note"), rows)


def _goal_table(report: Report) -> str:
    goals = evaluate(report.rows, report.findings)
    if not goals or not any(f"--preset {name}" in report.about["command"] for name in ("goals", "soft")):
        return ""
    rows = [[str(g.number), g.what, g.case, g.measured, g.wanted, "yes" if g.met else "**no**"] for g in goals]
    met = f"{sum(goal.met for goal in goals)} of {len(goals)} met. Public figures: {SOURCE}."
    return f"{met}\n\n{table(('goal', 'what', 'case', 'measured', 'wanted', 'met'), rows)}"


def _crossover_lines(rows: Sequence[Row]) -> list[str]:
    lines = []
    for what, tokens, fewest, most in crossovers(rows):
        where = f"not up to {most:,}" if tokens is None else f"from about {tokens:,.0f}"
        where = f"at {fewest:,} already, the fewest measured" if tokens is not None and tokens <= fewest else where
        lines.append(f"- {what}: {where} tokens.")
    return ["Where linear overtakes SDPA:\n\n" + "\n".join(lines)] if lines else []


def _wrong_lines(rows: Sequence[Row]) -> list[str]:
    lines = [f"- {row.case}, {row.mode}, {row.entrant}: {row.status}: {row.note}" for row in rows if row.ms is None]
    return ["Not measured:\n\n" + "\n".join(lines)] if lines else []


def speed_section(folder: Path) -> str:
    """The README's short tables: a row a shape and a row a size, from the runs of the goals or tables on CUDA."""
    rows = [(report, row) for _, report in load_reports(folder) for row in report.rows if row.device == "cuda"]
    if not rows:
        return NOTHING
    about = rows[0][0].about
    plain = [row for _, row in rows]
    ops = _best(plain, "op", "forward", False, lambda row: row.entrant == "inline triton")
    models = _best(plain, "model", "forward", True, lambda row: row.entrant == "inline_deit_tiny")
    machine = f"One {about['card']}, torch {about['torch']}, {rows[0][1].dtype}, by CUDA-graph replay."
    parts = [f"{machine} More, and training: [docs/performance.md](docs/performance.md)."]
    if ops:
        parts.append(_speed_ops(plain, ops))
    if models:
        parts.append(_speed_models(plain, models))
    return "\n\n".join(parts) if len(parts) > 1 else NOTHING


def _speed_ops(rows: Sequence[Row], ops: Sequence[Row]) -> str:
    lines = []
    for row in ops:
        sdpa, both = _rival(rows, row, SDPA), _same_case(rows, row, "forward+backward")
        sdpa_both = _rival(rows, both, SDPA) if both is not None else None
        cells = [number(row.ms), _ms(sdpa), number(row.of_floor, 2), _ms(both), _ms(sdpa_both)]
        cells.append(number(both.of_floor if both else None, 2))
        lines.append([f"{row.batch} x {row.heads} x {row.dim}, {row.tokens:,} tokens", *cells])
    titles = (
        "batch x heads x dim, tokens",
        "InLine ms",
        "SDPA ms",
        "x floor",
        "with backward ms",
        "SDPA ms",
        "x floor",
    )
    return table(titles, lines)


def _speed_models(rows: Sequence[Row], models: Sequence[Row]) -> str:
    lines = []
    for row in models:
        timm = next((r for r in rows if _alike(r, row) and r.entrant.startswith("timm ")), None)
        limit = limit_of(rows, row)
        entrants = (row, timm, limit)
        cells = ["-" if r is None or not r.ms else images(r.ms, r.batch) for r in entrants]
        lines.append([row.case, *cells])
    return table(("compiled, images a second", "inline", "timm's deit_tiny", "without attention"), lines)


def _best(rows: Sequence[Row], kind: str, mode: str, compiled: bool, wanted: Callable[[Row], bool]) -> list[Row]:
    return [r for r in rows if (r.kind, r.mode, r.compiled) == (kind, mode, compiled) and wanted(r) and r.ms]


def _alike(a: Row, b: Row) -> bool:
    return (a.kind, a.case, a.mode, a.compiled, a.dtype) == (b.kind, b.case, b.mode, b.compiled, b.dtype)


def _rival(rows: Sequence[Row], row: Row, entrant: str) -> Row | None:
    return next((r for r in rows if _alike(r, row) and r.entrant == entrant), None)


def _same_case(rows: Sequence[Row], row: Row, mode: str) -> Row | None:
    key = (row.kind, row.case, row.entrant, row.compiled, row.dtype, mode)
    return next((r for r in rows if (r.kind, r.case, r.entrant, r.compiled, r.dtype, r.mode) == key), None)


def _ms(row: Row | None) -> str:
    return number(None if row is None else row.ms)


def number(value: float | None, digits: int = 3) -> str:
    """ "-" where there is none."""
    return "-" if value is None else f"{value:,.{digits}f}"


def images(ms: float | None, batch: int) -> str:
    """Images a second."""
    if ms is None:
        return "-"
    rate = batch / ms * 1e3
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.2f}"
