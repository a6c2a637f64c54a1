"""The tables that `sightline bench` prints at its end."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sightline.cli.output import Column, show

if TYPE_CHECKING:
    from sightline.bench.goals import Goal
    from sightline.bench.results import Finding, Row

OPS = (
    Column("shape"),
    Column("mode"),
    Column("entrant"),
    Column("graph ms", right=True),
    Column("call ms", right=True),
    Column("floor ms", right=True, wide=True),
    Column("x floor", right=True),
    Column("GB/s", right=True),
    Column("of copy", right=True, wide=True),
    Column("TFLOP/s", right=True, wide=True),
    Column("MiB", right=True, wide=True),
    Column("error", right=True, wide=True),
    Column("public ms*", right=True, wide=True),
)
MODELS = (
    Column("model, size"),
    Column("mode"),
    Column("entrant"),
    Column("batch", right=True, wide=True),
    Column("images/s", right=True),
    Column("by calls", right=True),
    Column("of limit", right=True),
    Column("TFLOP/s", right=True, wide=True),
    Column("MiB", right=True, wide=True),
    Column("error", right=True, wide=True),
    Column("public*", right=True, wide=True),
)
FINDINGS = (Column("what"), Column("measured", right=True), Column("limit", right=True), Column("note", wide=True))
GOALS = (Column("goal", right=True), Column("what"), Column("case"), Column("measured", right=True),
         Column("wanted", right=True), Column("met"))  # fmt: skip


def show_ops(rows: "Sequence[Row]") -> None:
    """Operators: a line a row."""
    from sightline.bench.published import public_figure

    for dtype in dict.fromkeys(row.dtype for row in rows):
        print(f"\nOperators, {dtype}")
        show(OPS, [_op_cells(row, public_figure(row)) for row in rows if row.dtype == dtype])


def _op_cells(row: "Row", public: float | None) -> list[str]:
    if row.ms is None:
        return [row.case, row.mode, row.entrant, row.status, *["-"] * (len(OPS) - 4)]
    share = "-" if row.of_floor is None else f"{1 / row.of_floor:.0%}"
    speed = None if row.bandwidth_tb_s is None else row.bandwidth_tb_s * 1e3
    figures = (_number(row.graph_ms), _number(row.call_ms), _number(row.floor_ms), _number(row.of_floor, 2),
               _number(speed), share, _number(row.tflop_s, 3),
               _number(row.memory_mib, 4), _error(row.error), _number(public))  # fmt: skip
    return [row.case, row.mode, row.entrant, *figures]


def show_models(rows: "Sequence[Row]") -> None:
    """Models: a line a row."""
    from sightline.bench.goals import limit_of
    from sightline.bench.published import public_figure

    for dtype in dict.fromkeys(row.dtype for row in rows):
        print(f"\nModels, {dtype}")
        chosen = [row for row in rows if row.dtype == dtype]
        show(MODELS, [_model_cells(row, limit_of(rows, row), public_figure(row)) for row in chosen])


def _model_cells(row: "Row", limit: "Row | None", public: float | None) -> list[str]:
    mode = f"{row.mode}, compiled" if row.compiled else row.mode
    if row.ms is None:
        return [row.case, mode, row.entrant, str(row.batch), row.status, *["-"] * (len(MODELS) - 5)]
    part = "-" if limit is None or limit.ms is None else f"{limit.ms / row.ms:.0%}"
    by_calls = None if row.call_ms is None else row.batch / row.call_ms * 1e3
    figures = (_images(row.images_per_s), _images(by_calls), part, _number(row.tflop_s, 3), _number(row.memory_mib, 4),
               _error(row.error), _images(public))  # fmt: skip
    return [row.case, mode, row.entrant, str(row.batch), *figures]


def show_findings(findings: "Sequence[Finding]") -> None:
    """What should not surprise."""
    print("\nFirst calls, new sizes, batches")
    rows = [
        [item.name, f"{item.value:.3g} {item.unit}", "-" if item.limit is None else f"{item.limit:g}", item.note]
        for item in findings
    ]
    show(FINDINGS, rows)


def show_goals(goals: "Sequence[Goal]") -> None:
    """Goal, measured, met."""
    print(f"\nGoals: {sum(bool(goal.met) for goal in goals)} of {len(goals)} met")
    verdict = {True: "yes", False: "NO"}
    show(GOALS, [[str(g.number), g.what, g.case, g.measured, g.wanted, verdict[g.met]] for g in goals])


def summary(rows: "Sequence[Row]") -> str:
    """The times of a plan in one line, for the progress."""
    times = (f"{row.entrant} {row.status if row.ms is None else _number(row.ms) + ' ms'}" for row in rows)
    return ", ".join(times)


def _number(value: float | None, digits: int = 3) -> str:
    """Enough digits to compare, no exponents."""
    if value is None:
        return "-"
    whole = len(str(int(abs(value))))
    return f"{value:,.{max(0, digits - whole + (1 if abs(value) < 1 else 0))}f}"


def _images(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def _error(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}"
