"""Measure operators: check every candidate of a plan, time all in turns, and find where linear overtakes SDPA."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from sightline.bench.cases import OpCase
from sightline.bench.ceilings import Ceilings
from sightline.bench.check import MismatchError, check_operator
from sightline.bench.clock import Failure, Timing, Work, explain, measure, measuring
from sightline.bench.operators import (
    MOVE,
    SDPA,
    OpCandidate,
    calls_of,
    count_flops,
    make_operands,
    moved_bytes,
    operator_of,
)
from sightline.bench.precision import DTYPES, precision
from sightline.bench.results import REJECTED, Row
from sightline.layers.spec import Spec

L2_BYTES = 50 * 2**20  # of an H200, if the driver does not report it
MAX_SETS = 8
BASELINE_INPUTS = Spec("softmax")  # baselines only take q, k and v


@dataclass(frozen=True)
class OpPlan:
    """A case in one mode and dtype, with the candidates to time in turns."""

    case: OpCase
    mode: str
    dtype: str
    candidates: tuple[OpCandidate, ...]

    def __str__(self) -> str:
        return f"{self.case.name} {self.mode} {self.dtype}"


def run_plan(plan: OpPlan, device: torch.device, ceilings: Ceilings, budget_ms: float) -> list[Row]:
    """The rows of a plan, in the order of its candidates; a failure becomes the status of its row."""
    rows = {candidate.name: _row(plan, candidate, device) for candidate in plan.candidates}
    with measuring(device), precision(plan.dtype):
        works: dict[str, Work] = {}
        for candidate in plan.candidates:
            row = rows[candidate.name]
            try:
                works[candidate.name], row.error = _prepare(plan, candidate, device)
            except MismatchError as error:
                row.status, row.note = REJECTED, str(error)
            except Exception as error:  # the others are still measured
                _fail(row, explain(error))
        for name, outcome in measure(works, device, budget_ms).items():
            if isinstance(outcome, Failure):
                _fail(rows[name], outcome)
            else:
                _fill(rows[name], plan, outcome, ceilings, next(e for e in plan.candidates if e.name == name))
        works.clear()
    if any(candidate.compiled for candidate in plan.candidates):
        torch._dynamo.reset()
    return list(rows.values())


def _prepare(plan: OpPlan, candidate: OpCandidate, device: torch.device) -> tuple[Work, float]:
    """The calls of a candidate, and its error; raises if it is wrong or does not run."""
    spec = candidate.spec or BASELINE_INPUTS
    function = operator_of(candidate, plan.case, device)
    moved = _bytes(plan, spec)
    count = _sets(moved, device)
    sets = [make_operands(plan.case, spec, DTYPES[plan.dtype], device, seed) for seed in range(count)]
    error = check_operator(candidate, function, sets[0], plan.mode, plan.dtype)
    return Work(calls_of(candidate, function, plan.mode, sets), sets[0].nbytes), error


def _sets(moved: int, device: torch.device) -> int:
    """How many sets of inputs to rotate through, so that none is still in the cache."""
    if device.type != "cuda":
        return 1
    cache = int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0) or L2_BYTES)
    return max(1, min(MAX_SETS, math.ceil(4 * cache / moved)))


def _bytes(plan: OpPlan, spec: Spec) -> int:
    extra = make_operands(plan.case, spec, DTYPES[plan.dtype], "meta", 0).extra
    return moved_bytes(plan.case, spec.name, plan.mode, extra, DTYPES[plan.dtype].itemsize)


def _row(plan: OpPlan, candidate: OpCandidate, device: torch.device) -> Row:
    case = plan.case
    return Row(
        "op", case.name, candidate.name, plan.mode, candidate.compiled, plan.dtype, device.type, case.batch,
        case.tokens, case.heads, case.dim, case.grid[0], case.grid[1],
    )  # fmt: skip


def _fail(row: Row, failure: Failure) -> None:
    row.status, row.note = failure.status, failure.note


def _fill(row: Row, plan: OpPlan, timing: Timing, ceilings: Ceilings, candidate: OpCandidate) -> None:
    """Times, and what follows from them and the shape."""
    row.graph_ms, row.call_ms, row.spread = timing.graph_ms, timing.call_ms, timing.spread
    row.memory_mib, row.note = timing.memory_mib, timing.note
    moved = _bytes(plan, candidate.spec or BASELINE_INPUTS)
    flops = count_flops(candidate, plan.case, plan.mode)
    row.floor_ms, row.gflop = moved / ceilings.copy * 1e3, flops / 1e9
    if row.ms:
        row.images_per_s = plan.case.batch / row.ms * 1e3
        row.of_floor, row.bandwidth_tb_s = row.ms / row.floor_ms, moved / row.ms / 1e9
        row.tflop_s = flops / row.ms / 1e9


def plans(
    cases: Sequence[OpCase], modes: Sequence[str], dtypes: Sequence[str], candidates: Sequence[OpCandidate]
) -> list[OpPlan]:
    """Every case in every mode and dtype."""
    return [
        OpPlan(case, mode, dtype, tuple(candidates)) for dtype in dtypes for case in cases for mode in modes
    ]  # fmt: skip


@dataclass(frozen=True)
class Crossover:
    """`tokens` is None if the candidate is never faster up to `most` tokens, and `fewest` if it always is."""

    what: str
    tokens: float | None
    fewest: int
    most: int

    def __str__(self) -> str:
        if self.tokens is None:
            return f"{self.what}: not up to {self.most:,} tokens"
        if self.tokens <= self.fewest:
            return f"{self.what}: at {self.fewest:,} tokens already, the fewest measured"
        return f"{self.what}: from about {self.tokens:,.0f} tokens on"


def crossovers(rows: Sequence[Row]) -> Iterator[Crossover]:
    """The number of tokens from which a linear candidate is faster per image than SDPA, on shapes of one width.

    Between two shapes the ratio of the times is interpolated as a power of the number of tokens.
    """
    series: dict[tuple[object, ...], dict[int, dict[str, float]]] = {}
    for row in rows:
        if row.kind == "op" and row.ms and row.tokens:
            key = (row.heads, row.dim, row.mode, row.dtype, row.device)
            series.setdefault(key, {}).setdefault(row.tokens, {})[row.candidate] = row.ms / row.batch
    for (heads, dim, mode, dtype, _), points in series.items():
        names = {name for times in points.values() for name in times} - {SDPA, MOVE}
        for name in sorted(name for name in names if not name.startswith("softmax")):
            ratios = [(n, points[n][name] / points[n][SDPA]) for n in sorted(points) if {name, SDPA} <= set(points[n])]
            if len(ratios) > 1:
                what = f"{name}, {heads} heads of {dim}, {mode}, {dtype}"
                yield Crossover(what, _crossing(ratios), ratios[0][0], ratios[-1][0])


def _crossing(ratios: Sequence[tuple[int, float]]) -> float | None:
    """Where a ratio, given at increasing numbers of tokens, falls to one for good."""
    slow = [i for i, (_, ratio) in enumerate(ratios) if ratio > 1]
    if not slow:
        return float(ratios[0][0])
    if slow[-1] == len(ratios) - 1:
        return None
    (n, above), (m, below) = ratios[slow[-1]], ratios[slow[-1] + 1]
    part = math.log(above) / (math.log(above) - math.log(below))
    return n * (m / n) ** part
