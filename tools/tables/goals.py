"""The speed goals of this project, and whether the rows of a run meet them. Ratios are within one run.

Only the comparison with the public code uses figures measured elsewhere, which is noted in its label.
"""

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sightline.bench.candidates import DTYPES
from sightline.bench.operators import SDPA
from sightline.bench.results import OK, Finding, Row
from sightline.bench.tables import Table, limit_of, pick
from tables.published import public_figure, recorded

FLOOR = {"forward": 2.0, "forward+backward": 2.5}
PUBLIC_FORWARD = 10.0
OF_LIMIT = 0.92
OVER_TIMM = {1024: 2.4, 2048: 6.0}
OVER_PUBLIC = 2.0
SOFT = ("soft triton", "soft_norm triton")
SOFT_OVER_PUBLIC = {"forward": 10.0, "train": 5.0}
SOFT_FROM = 3136  # tokens from which SOFT should be faster than SDPA, and its time should grow linearly
SOFT_LINEAR = 1.25  # time per token, relative to that at SOFT_FROM
SOFT_MEMORY = {"forward": 6.0, "forward+backward": 9.0}  # tensors of tokens in memory, inputs and gradients included
SIGNS = {">=": operator.ge, ">": operator.gt, "<=": operator.le}
ELSEWHERE = "measured elsewhere"


@dataclass(frozen=True)
class Goal:
    """One goal in one case; a goal that could not be measured is not met."""

    number: int
    what: str
    case: str
    measured: str
    wanted: str
    met: bool


def goal(number: int, what: str, case: str, value: float, sign: str, limit: float, form: str = "{:.2f}x") -> Goal:
    """Compare a value with a limit; `form` writes the value, and its unit the limit."""
    wanted = f"{limit:.0%}" if form.endswith("%}") else f"{limit:g}{form.partition('}')[2]}"
    return Goal(number, what, case, form.format(value), f"{sign} {wanted}", SIGNS[sign](value, limit))


def evaluate(rows: Sequence[Row], findings: Sequence[Finding] = ()) -> list[Goal]:
    """Every goal that the rows and findings cover, in the order of the goals."""
    found = [each for row in rows for each in _row_goals(rows, row)]
    for item in findings:
        if item.limit is not None:
            what, _, case = item.name.partition(": ")
            measured, wanted = f"{item.value:.3g} {item.unit}", f"<= {item.limit:g}"
            found.append(Goal(4, case or what, what, measured, wanted, item.value <= item.limit))
    return sorted(found, key=lambda each: each.number)


def goal_table(goals: Sequence[Goal]) -> Table:
    """Goal, measured, met."""
    lines = [[str(g.number), g.what, g.case, g.measured, g.wanted, "yes" if g.met else "NO"] for g in goals]
    return Table(("goal", "what", "case", "measured", "wanted", "met"), lines, 3)


def _row_goals(rows: Sequence[Row], row: Row) -> Iterator[Goal]:
    """The goals for a row of one of our mechanisms."""
    soft = row.candidate.startswith("soft")
    case = f"{row.case} {row.mode}{' compiled' if row.compiled else ''}"
    if row.kind == "op":
        if row.candidate not in ("inline triton", *SOFT):
            return
        number, what, make = (3, "operator", _soft_operator) if soft else (1, "operator", _operator)
        case = f"{row.candidate.split()[0]}, {row.tokens:,} tokens, {row.mode} {row.dtype}" if soft else case
    else:
        if row.candidate != row.case.split()[0] or row.mode == "forward+backward":
            return
        number, what, make = 5 if row.device == "cpu" else 3 if soft else 2, "model", _model
    if row.status != OK or row.ms is None:
        yield Goal(number, what, case, row.status, "a time", False)
    else:
        yield from make(rows, row, case)


def _times(other: Row | None, row: Row) -> float | None:
    """How many times as fast a row is as another."""
    return other.ms / row.ms if other is not None and other.ms and row.ms else None


def _operator(rows: Sequence[Row], row: Row, case: str) -> Iterator[Goal]:
    assert row.of_floor is not None
    yield goal(1, "ratio to the floor", case, row.of_floor, "<=", FLOOR[row.mode])
    if ratio := _times(pick(rows, row, lambda name: name == SDPA), row):
        yield goal(1, "faster than SDPA", case, ratio, ">", 1)
    public = public_figure(row)
    if public is not None and row.mode == "forward" and row.ms:
        label = f"speedup over the public forward, {ELSEWHERE}"
        yield goal(1, label, case, public / row.ms, ">=", PUBLIC_FORWARD, "{:.1f}x")


def _model(rows: Sequence[Row], row: Row, case: str) -> Iterator[Goal]:
    deit = row.candidate == "inline_deit_tiny"
    on_cpu = row.device == "cpu"
    part, over_timm = _times(limit_of(rows, row), row), _times(pick(rows, row, lambda n: n.startswith("timm ")), row)
    inference = (row.mode, row.dtype) == ("forward", "float32")
    if part and deit and (inference if on_cpu else row.compiled):
        yield goal(5 if on_cpu else 2, "of the network without attention", case, part, ">=", OF_LIMIT, "{:.1%}")
    if over_timm and deit and row.compiled and not on_cpu:
        wanted = OVER_TIMM.get(row.height or 0, 1.0)
        yield goal(2, "speedup over timm's deit_tiny", case, over_timm, ">=" if wanted > 1 else ">", wanted)
    public = public_figure(row)
    if public is not None and row.call_ms and row.candidate.startswith("inline") and not row.compiled:
        ratio = row.batch / row.call_ms * 1e3 / public  # plain calls, as the public model was measured
        yield goal(2, f"speedup over the public model, {ELSEWHERE}", case, ratio, ">=", OVER_PUBLIC)
    if row.candidate.startswith("soft") and row.compiled and not on_cpu:
        yield from _soft_model(row, f"{case} {row.dtype}")


def _soft_model(row: Row, case: str) -> Iterator[Goal]:
    """A compiled model in any dtype next to the public one, which is in TF32: by graph replay and by plain calls."""
    wanted, public = SOFT_OVER_PUBLIC.get(row.mode), recorded("model", row.case, row.mode, False)
    for label, ms in (("graph replay", row.graph_ms), ("plain calls", row.call_ms)):
        if wanted and public:
            what = f"speedup over the public model (TF32), {ELSEWHERE}, by {label}"
            yield goal(3, what, case, row.batch / ms * 1e3 / public if ms else 0.0, ">=", wanted)


def _soft_operator(rows: Sequence[Row], row: Row, case: str) -> Iterator[Goal]:
    assert row.tokens
    assert row.heads
    assert row.dim
    assert row.ms
    if row.memory_mib is not None:
        one = row.batch * row.tokens * row.heads * row.dim * DTYPES[row.dtype].itemsize / 2**20
        held = row.memory_mib / one
        yield goal(3, "memory, in tensors like q", case, held, "<=", SOFT_MEMORY[row.mode], "{:.1f}")
    if row.tokens < SOFT_FROM:
        return
    if ratio := _times(pick(rows, row, lambda name: name == SDPA), row):
        yield goal(3, "faster than SDPA", case, ratio, ">", 1, "{:.1f}x")
    first = next((r for r in rows if _series(r) == _series(row) and r.tokens == SOFT_FROM), None)
    if first is not None and first.ms and first is not row:
        slope = row.ms / (row.batch * row.tokens) / (first.ms / (first.batch * SOFT_FROM))
        yield goal(3, f"time per token, relative to {SOFT_FROM:,} tokens", case, slope, "<=", SOFT_LINEAR)


def _series(row: Row) -> tuple[object, ...]:
    """What the rows of one operator at several lengths have in common."""
    return row.kind, row.candidate, row.mode, row.compiled, row.dtype, row.device, row.heads, row.dim
