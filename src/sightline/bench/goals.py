"""The goals of the project's speed, and whether the rows of a run meet them. All ratios are of one run.

Only the comparison with the public code is with figures measured elsewhere, and says so.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sightline.bench.operators import SDPA
from sightline.bench.published import public_figure
from sightline.bench.results import OK, Finding, Row

FLOOR = {"forward": 2.0, "forward+backward": 2.5}
PUBLIC_FORWARD = 10.0
OF_LIMIT = 0.92
OVER_TIMM = {1024: 2.4, 2048: 6.0}
OVER_PUBLIC = 2.0


@dataclass(frozen=True)
class Goal:
    """One goal in one case; what could not be measured is not met."""

    number: int
    what: str
    case: str
    measured: str
    wanted: str
    met: bool


def evaluate(rows: Sequence[Row], findings: Sequence[Finding] = ()) -> list[Goal]:
    """Every goal that the rows and findings say something about, in the order of the goals."""
    found = [*_operators(rows), *_models(rows), *_surprises(findings)]
    return sorted(found, key=lambda goal: goal.number)


def _pick(rows: Sequence[Row], like: Row, wanted: Callable[[str], bool]) -> Row | None:
    """The row of another entrant in the same plan."""
    same = (like.kind, like.case, like.mode, like.compiled, like.dtype, like.device)
    for row in rows:
        if wanted(row.entrant) and (row.kind, row.case, row.mode, row.compiled, row.dtype, row.device) == same:
            return row
    return None


def _operators(rows: Sequence[Row]) -> Iterator[Goal]:
    for row in rows:
        if row.kind != "op" or row.entrant != "inline triton":
            continue
        case = f"{row.case} {row.mode}"
        if row.status != OK or row.ms is None:
            yield Goal(1, "operator", case, row.status, "a time", False)
            continue
        limit = FLOOR[row.mode]
        assert row.of_floor is not None
        yield Goal(1, "ratio to the floor", case, f"{row.of_floor:.2f}x", f"<= {limit:g}x", row.of_floor <= limit)
        rival = _pick(rows, row, lambda name: name == SDPA)
        if rival is not None and rival.ms:
            ratio = rival.ms / row.ms
            yield Goal(1, "faster than SDPA", case, f"{ratio:.2f}x", "> 1x", ratio > 1)
        public = public_figure(row)
        if public is not None and row.mode == "forward":
            ratio = public / row.ms
            label = "against the public forward, measured elsewhere"
            yield Goal(1, label, case, f"{ratio:.1f}x", f">= {PUBLIC_FORWARD:g}x", ratio >= PUBLIC_FORWARD)


def _models(rows: Sequence[Row]) -> Iterator[Goal]:
    for row in rows:
        if row.kind != "model" or row.entrant != row.case.split()[0] or row.mode == "forward+backward":
            continue
        case = f"{row.case} {row.mode}{' compiled' if row.compiled else ''}"
        if row.status != OK or row.ms is None:
            yield Goal(5 if row.device == "cpu" else 2, "model", case, row.status, "a time", False)
        elif row.device == "cpu":
            if (row.entrant, row.mode, row.dtype) == ("inline_deit_tiny", "forward", "float32"):
                yield from _of_limit(rows, row, case, 5)
        elif row.compiled and row.entrant == "inline_deit_tiny":
            yield from _of_limit(rows, row, case, 2)
            yield from _over_timm(rows, row, case)
        elif not row.compiled:
            yield from _over_public(row, case)


def limit_of(rows: Sequence[Row], row: Row) -> Row | None:
    """The same network without attention, in the same plan."""
    return _pick(rows, row, lambda name: " none" in name)


def _of_limit(rows: Sequence[Row], row: Row, case: str, number: int) -> Iterator[Goal]:
    limit = limit_of(rows, row)
    if limit is not None and limit.ms and row.ms:
        part = limit.ms / row.ms
        yield Goal(number, "of the network without attention", case, f"{part:.1%}", f">= {OF_LIMIT:.0%}",
                   part >= OF_LIMIT)  # fmt: skip


def _over_timm(rows: Sequence[Row], row: Row, case: str) -> Iterator[Goal]:
    rival = _pick(rows, row, lambda name: name.startswith("timm "))
    if rival is not None and rival.ms and row.ms:
        ratio, wanted = rival.ms / row.ms, OVER_TIMM.get(row.height or 0, 1.0)
        met, sign = (ratio >= wanted, ">=") if wanted > 1 else (ratio > 1, ">")
        yield Goal(2, "against timm's deit_tiny", case, f"{ratio:.2f}x", f"{sign} {wanted:g}x", met)


def _over_public(row: Row, case: str) -> Iterator[Goal]:
    public = public_figure(row)
    if public is None or row.call_ms is None or not row.entrant.startswith("inline"):
        return
    ratio = row.batch / row.call_ms * 1e3 / public  # plain calls, as the public model was measured
    label = "against the public model, measured elsewhere"
    yield Goal(2, label, case, f"{ratio:.2f}x", f">= {OVER_PUBLIC:g}x", ratio >= OVER_PUBLIC)


def _surprises(findings: Sequence[Finding]) -> Iterator[Goal]:
    for item in findings:
        if item.limit is not None:
            what, _, case = item.name.partition(": ")
            measured, wanted = f"{item.value:.3g} {item.unit}", f"<= {item.limit:g}"
            yield Goal(4, case or what, what, measured, wanted, item.value <= item.limit)
