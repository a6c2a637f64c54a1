"""The speed goals of the project, and whether the rows of a run meet them. Ratios are within one run.

Only the comparison with the public code uses figures measured elsewhere, which is noted in its label.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sightline.bench.candidates import DTYPES
from sightline.bench.operators import SDPA
from sightline.bench.published import public_figure, public_images
from sightline.bench.results import OK, Finding, Row

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


@dataclass(frozen=True)
class Goal:
    """One goal in one case; a goal that could not be measured is not met."""

    number: int
    what: str
    case: str
    measured: str
    wanted: str
    met: bool


def evaluate(rows: Sequence[Row], findings: Sequence[Finding] = ()) -> list[Goal]:
    """Every goal that the rows and findings cover, in the order of the goals."""
    found = [*_operators(rows), *_models(rows), *_soft_operators(rows), *_soft_models(rows), *_cold_start(findings)]
    return sorted(found, key=lambda goal: goal.number)


def pick(rows: Sequence[Row], like: Row, wanted: Callable[[str], bool]) -> Row | None:
    """The row of another candidate in the same plan."""
    return next((row for row in rows if wanted(row.candidate) and row.like(like)), None)


def _operators(rows: Sequence[Row]) -> Iterator[Goal]:
    for row in rows:
        if row.kind != "op" or row.candidate != "inline triton":
            continue
        case = f"{row.case} {row.mode}"
        if row.status != OK or row.ms is None:
            yield Goal(1, "operator", case, row.status, "a time", False)
            continue
        limit = FLOOR[row.mode]
        assert row.of_floor is not None
        yield Goal(1, "ratio to the floor", case, f"{row.of_floor:.2f}x", f"<= {limit:g}x", row.of_floor <= limit)
        other = pick(rows, row, lambda name: name == SDPA)
        if other is not None and other.ms:
            ratio = other.ms / row.ms
            yield Goal(1, "faster than SDPA", case, f"{ratio:.2f}x", "> 1x", ratio > 1)
        public = public_figure(row)
        if public is not None and row.mode == "forward":
            ratio = public / row.ms
            label = "speedup over the public forward, measured elsewhere"
            yield Goal(1, label, case, f"{ratio:.1f}x", f">= {PUBLIC_FORWARD:g}x", ratio >= PUBLIC_FORWARD)


def _models(rows: Sequence[Row]) -> Iterator[Goal]:
    for row in rows:
        if row.kind != "model" or row.candidate != row.case.split()[0] or row.mode == "forward+backward":
            continue
        case = f"{row.case} {row.mode}{' compiled' if row.compiled else ''}"
        if row.status != OK or row.ms is None:
            number = 5 if row.device == "cpu" else 3 if row.candidate.startswith("soft") else 2
            yield Goal(number, "model", case, row.status, "a time", False)
        elif row.device == "cpu":
            if (row.candidate, row.mode, row.dtype) == ("inline_deit_tiny", "forward", "float32"):
                yield from _of_limit(rows, row, case, 5)
        elif row.compiled and row.candidate == "inline_deit_tiny":
            yield from _of_limit(rows, row, case, 2)
            yield from _over_timm(rows, row, case)
        elif not row.compiled:
            yield from _over_public(row, case)


def limit_of(rows: Sequence[Row], row: Row) -> Row | None:
    """The same network without attention, in the same plan."""
    return pick(rows, row, lambda name: " none" in name)


def _of_limit(rows: Sequence[Row], row: Row, case: str, number: int) -> Iterator[Goal]:
    limit = limit_of(rows, row)
    if limit is not None and limit.ms and row.ms:
        part = limit.ms / row.ms
        yield Goal(number, "of the network without attention", case, f"{part:.1%}", f">= {OF_LIMIT:.0%}",
                   part >= OF_LIMIT)  # fmt: skip


def _over_timm(rows: Sequence[Row], row: Row, case: str) -> Iterator[Goal]:
    other = pick(rows, row, lambda name: name.startswith("timm "))
    if other is not None and other.ms and row.ms:
        ratio, wanted = other.ms / row.ms, OVER_TIMM.get(row.height or 0, 1.0)
        met, sign = (ratio >= wanted, ">=") if wanted > 1 else (ratio > 1, ">")
        yield Goal(2, "speedup over timm's deit_tiny", case, f"{ratio:.2f}x", f"{sign} {wanted:g}x", met)


def _over_public(row: Row, case: str) -> Iterator[Goal]:
    public = public_figure(row)
    if public is None or row.call_ms is None or not row.candidate.startswith("inline"):
        return
    ratio = row.batch / row.call_ms * 1e3 / public  # plain calls, as the public model was measured
    label = "speedup over the public model, measured elsewhere"
    yield Goal(2, label, case, f"{ratio:.2f}x", f">= {OVER_PUBLIC:g}x", ratio >= OVER_PUBLIC)


def _soft_operators(rows: Sequence[Row]) -> Iterator[Goal]:
    for row in rows:
        if row.kind != "op" or row.candidate not in SOFT or row.tokens is None:
            continue
        case = f"{row.candidate.split()[0]}, {row.tokens:,} tokens, {row.mode} {row.dtype}"
        if row.status != OK or row.ms is None:
            yield Goal(3, "operator", case, row.status, "a time", False)
            continue
        if row.memory_mib is not None:
            one = row.batch * row.tokens * (row.heads or 0) * (row.dim or 0) * DTYPES[row.dtype].itemsize / 2**20
            held, limit = row.memory_mib / one, SOFT_MEMORY[row.mode]
            yield Goal(3, "memory, in tensors like q", case, f"{held:.1f}", f"<= {limit:g}", held <= limit)
        if row.tokens < SOFT_FROM:
            continue
        other = pick(rows, row, lambda name: name == SDPA)
        if other is not None and other.ms:
            ratio = other.ms / row.ms
            yield Goal(3, "faster than SDPA", case, f"{ratio:.1f}x", "> 1x", ratio > 1)
        first = next((r for r in rows if _series(r) == _series(row) and r.tokens == SOFT_FROM), None)
        if first is not None and first.ms and first is not row:
            slope = row.ms / (row.batch * row.tokens) / (first.ms / (first.batch * SOFT_FROM))
            label = f"time per token, relative to {SOFT_FROM:,} tokens"
            yield Goal(3, label, case, f"{slope:.2f}x", f"<= {SOFT_LINEAR:g}x", slope <= SOFT_LINEAR)


def _series(row: Row) -> tuple[object, ...]:
    """What the rows of one operator at several lengths have in common."""
    return row.kind, row.candidate, row.mode, row.compiled, row.dtype, row.device, row.heads, row.dim


def _soft_models(rows: Sequence[Row]) -> Iterator[Goal]:
    """Compiled models in any dtype next to the public one, which is in TF32: by graph replay and by plain calls."""
    for row in rows:
        wanted = SOFT_OVER_PUBLIC.get(row.mode)
        public = public_images(row.case, row.mode, False)
        own = row.kind == "model" and row.candidate == row.case.split()[0] and row.device == "cuda" and row.compiled
        if not own or not row.candidate.startswith("soft") or public is None or wanted is None:
            continue
        case = f"{row.case} {row.mode} compiled {row.dtype}"
        for label, ms in (("graph replay", row.graph_ms), ("plain calls", row.call_ms)):
            what = f"speedup over the public model (TF32), measured elsewhere, by {label}"
            ratio = row.batch / ms * 1e3 / public if ms else 0.0
            yield Goal(3, what, case, f"{ratio:.2f}x" if ms else row.status, f">= {wanted:g}x", ratio >= wanted)


def _cold_start(findings: Sequence[Finding]) -> Iterator[Goal]:
    for item in findings:
        if item.limit is not None:
            what, _, case = item.name.partition(": ")
            measured, wanted = f"{item.value:.3g} {item.unit}", f"<= {item.limit:g}"
            yield Goal(4, case or what, what, measured, wanted, item.value <= item.limit)
