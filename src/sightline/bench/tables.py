"""The tables of a report as text: titles and cells, for the terminal and for the documentation."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from sightline.bench.operators import FLOORS, SDPA
from sightline.bench.results import COMPILED, EAGER, Finding, Row

# Titles of what plain calls give, by kind and, of models, mode.
PLAIN_TITLES = {
    ("model", "train"): "Training step",
    ("model", "forward"): "Inference",
    ("model", "latency"): "One image at a time",
    ("module", ""): "Attention modules",
    ("op", ""): "Operators",
    ("run", ""): "Training runs",
}


class Table(NamedTuple):
    """Titles and rows of cells. `text` counts the leading columns of text; `extra` names columns to drop if narrow."""

    titles: tuple[str, ...]
    rows: list[list[str]]
    text: int = 1
    extra: tuple[str, ...] = ()


def row_tables(rows: Sequence[Row]) -> Iterator[tuple[str, list[Row], Table]]:
    """Operators, modules and models, one table per dtype: its title, the rows in it, their cells."""
    kinds = (("op", "Operators", op_table), ("module", "Modules", op_table), ("model", "Models", model_table))
    for kind, title, make in kinds:
        own = [row for row in rows if row.kind == kind]
        for dtype in dict.fromkeys(row.dtype for row in own):
            part = [row for row in own if row.dtype == dtype]
            yield f"{title}, {dtype}", part, make(part)


def op_table(rows: Sequence[Row]) -> Table:
    """Operators: one line per candidate, in the order of the run."""
    titles = ("shape", "mode", "candidate", "graph ms", "call ms", "floor ms", "x floor", "GB/s", "TFLOP/s", "MiB",
              "error")  # fmt: skip
    lines = []
    for row in rows:
        cells = [number(row.graph_ms), number(row.call_ms), number(row.floor_ms), number(row.of_floor, 2),
                 _gb(row.bandwidth_tb_s), number(row.tflop_s, 1), number(row.memory_mib, 0),
                 _error(row.error)]  # fmt: skip
        if row.ms is None:
            cells = [row.status, *["-"] * (len(cells) - 1)]
        lines.append([row.case, work(row), row.candidate, *cells])
    return Table(titles, lines, 3, ("floor ms", "TFLOP/s", "MiB", "error"))


def model_table(rows: Sequence[Row]) -> Table:
    """Models: one line per candidate, in the order of the run."""
    titles = ("model, size", "mode", "candidate", "batch", "images/s, graph", "images/s, calls", "of limit", "TFLOP/s",
              "MiB", "error")  # fmt: skip
    lines = []
    for row in rows:
        limit = limit_of(rows, row)
        share = f"{limit.ms / row.ms:.1%}" if limit is not None and limit.ms and row.ms else "-"
        cells = [rate(row.graph_ms, row.batch), rate(row.call_ms, row.batch), share, number(row.tflop_s, 1),
                 number(row.memory_mib, 0), _error(row.error)]  # fmt: skip
        if row.ms is None:
            cells = [row.status, *["-"] * (len(cells) - 1)]
        lines.append([row.case, work(row), row.candidate, str(row.batch), *cells])
    return Table(titles, lines, 3, ("batch", "TFLOP/s", "MiB", "error"))


def plain_tables(rows: Sequence[Row]) -> Iterator[tuple[str, list[Row], Table]]:
    """What plain calls give, one table per kind of work: its title, the rows in it, their cells."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        mode = row.mode if row.kind == "model" else ""
        groups.setdefault((row.kind, mode, row.dtype), []).append(row)
    for (kind, mode, dtype), part in groups.items():
        title = PLAIN_TITLES.get((kind, mode), f"{kind} {mode}")
        yield f"{title}, {dtype}", part, plain_calls(part) if kind in ("model", "run") else plain_launches(part)


def plain_calls(rows: Sequence[Row]) -> Table:
    """Models: the time of a call, and speeds relative to timm's model and to the same network without attention."""
    titles = ("model, size", "how", "candidate", "batch", "call ms", "images/s", "GPU ms", "x timm", "of no attention",
              "parameters")  # fmt: skip
    lines = []
    for row in rows:
        cells = [number(row.call_ms), rate(row.call_ms, row.batch), number(row.gpu_ms),
                 number(row.over_timm, 2), "-" if row.of_none is None else f"{row.of_none:.0%}",
                 "-" if row.params is None else f"{row.params / 1e6:.1f} M"]  # fmt: skip
        if row.call_ms is None and row.images_per_s:  # a whole run
            cells[1] = number(row.images_per_s, 0)
        elif row.call_ms is None:
            cells = [row.status, *["-"] * (len(cells) - 1)]
        lines.append([row.case, row.how, row.candidate, str(row.batch), *cells])
    return Table(titles, lines, 3, ("batch", "parameters"))


def plain_launches(rows: Sequence[Row]) -> Table:
    """Operators and modules: the time of a call, what the host takes of it, and what the GPU does."""
    titles = ("shape", "mode", "how", "candidate", "host us", "call us", "GPU us", "error")
    lines = []
    for row in rows:
        cells = [*(_microseconds(ms) for ms in (row.host_ms, row.call_ms, row.gpu_ms)), _error(row.error)]
        if row.call_ms is None:
            cells = [row.status, *["-"] * (len(cells) - 1)]
        lines.append([row.case, row.mode, row.how, row.candidate, *cells])
    return Table(titles, lines, 4, ("error",))


def work(row: Row) -> str:
    """Mode and how it is called; nothing for eager calls."""
    named = {EAGER: "", COMPILED: ", compiled"}
    return f"{row.mode}{named.get(row.how, f', {row.how}')}"


def finding_table(findings: Sequence[Finding]) -> Table:
    """First calls, new sizes and batch composition."""
    lines = [
        [item.name, f"{item.value:.3g} {item.unit}", "-" if item.limit is None else f"{item.limit:g}", item.note or "-"]
        for item in findings
    ]
    return Table(("what", "measured", "limit", "note"), lines, extra=("note",))


def _microseconds(ms: float | None) -> str:
    return number(None if ms is None else ms * 1e3, 1)


def pick(rows: Sequence[Row], like: Row, wanted: Callable[[str], bool]) -> Row | None:
    """The row of another candidate in the same plan."""
    return next((row for row in rows if wanted(row.candidate) and row.like(like)), None)


def limit_of(rows: Sequence[Row], row: Row) -> Row | None:
    """The same network without attention, in the same plan."""
    return pick(rows, row, lambda name: " none" in name)


def number(value: float | None, digits: int = 3) -> str:
    """A number with thousands separators; "-" for None."""
    return "-" if value is None else f"{value:,.{digits}f}"


def rate(ms: float | None, batch: int) -> str:
    """Images per second."""
    if ms is None:
        return "-"
    found = batch / ms * 1e3
    return f"{found:,.0f}" if found >= 100 else f"{found:.2f}"


def _gb(tb_per_s: float | None) -> str:
    return "-" if tb_per_s is None else f"{tb_per_s * 1e3:,.0f}" if tb_per_s > 0.1 else f"{tb_per_s * 1e3:.1f}"


def _error(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}"


def crossovers(rows: Sequence[Row]) -> Iterator[str]:
    """Sentences on the number of tokens from which a linear candidate is faster per image than SDPA, by width.

    Between two shapes the ratio of the times is interpolated as a power of the number of tokens.
    """
    series: dict[tuple[object, ...], dict[int, dict[str, float]]] = {}
    for row in rows:
        if row.kind == "op" and row.ms and row.tokens:
            key = (row.heads, row.dim, row.mode, row.dtype, row.device)
            series.setdefault(key, {}).setdefault(row.tokens, {})[row.candidate] = row.ms / row.batch
    for (heads, dim, mode, dtype, _), points in series.items():
        names = {name for times in points.values() for name in times} - {SDPA, *FLOORS}
        for name in sorted(name for name in names if not name.startswith("softmax")):
            ratios = [(n, points[n][name] / points[n][SDPA]) for n in sorted(points) if {name, SDPA} <= set(points[n])]
            if len(ratios) > 1:
                yield f"{name}, {heads} heads of {dim}, {mode}, {dtype}: {_crossing(ratios)}"


def _crossing(ratios: Sequence[tuple[int, float]]) -> str:
    """Where a ratio, given at increasing numbers of tokens, falls to one for good."""
    slow = [i for i, (_, ratio) in enumerate(ratios) if ratio > 1]
    if not slow:
        return f"at {ratios[0][0]:,} tokens already, the fewest measured"
    if slow[-1] == len(ratios) - 1:
        return f"not up to {ratios[-1][0]:,} tokens"
    (n, above), (m, below) = ratios[slow[-1]], ratios[slow[-1] + 1]
    part = math.log(above) / (math.log(above) - math.log(below))
    return f"from about {n * (m / n) ** part:,.0f} tokens on"
