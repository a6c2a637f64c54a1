"""`sightline bench ops`: every entrant on every shape, checked, then timed in turns."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sightline.bench.cases import OpCase
from sightline.bench.ceilings import Ceilings
from sightline.bench.check import MismatchError, check_operator
from sightline.bench.clock import Failure, Timing, Work, explain, measure, measuring
from sightline.bench.operators import (
    MOVE,
    SDPA,
    OpEntrant,
    calls_of,
    count_flops,
    make_operands,
    moved_bytes,
    operator_of,
)
from sightline.bench.precision import DTYPES, precision
from sightline.bench.results import REFUSED, Row
from sightline.layers.spec import Spec

L2_BYTES = 50 * 2**20  # of an H200, where the driver does not tell
MAX_SETS = 8
RIVAL_INPUTS = Spec("softmax")  # rivals take q, k and v alone


@dataclass(frozen=True)
class OpPlan:
    """A case in one mode and type, with the entrants that are timed in turns."""

    case: OpCase
    mode: str
    dtype: str
    entrants: tuple[OpEntrant, ...]

    def __str__(self) -> str:
        return f"{self.case.name} {self.mode} {self.dtype}"


def run_plan(plan: OpPlan, device: torch.device, ceilings: Ceilings, budget_ms: float) -> list[Row]:
    """The rows of a plan, in the order of its entrants; every failure is a row that says so."""
    rows = {entrant.name: _row(plan, entrant, device) for entrant in plan.entrants}
    with measuring(device), precision(plan.dtype):
        works: dict[str, Work] = {}
        for entrant in plan.entrants:
            row = rows[entrant.name]
            try:
                works[entrant.name], row.error = _prepare(plan, entrant, device)
            except MismatchError as error:
                row.status, row.note = REFUSED, str(error)
            except Exception as error:  # whatever an entrant does, the others are measured
                _fail(row, explain(error))
        for name, outcome in measure(works, device, budget_ms).items():
            if isinstance(outcome, Failure):
                _fail(rows[name], outcome)
            else:
                _fill(rows[name], plan, outcome, ceilings, next(e for e in plan.entrants if e.name == name))
        works.clear()
    if any(entrant.compiled for entrant in plan.entrants):
        torch._dynamo.reset()
    return list(rows.values())


def _prepare(plan: OpPlan, entrant: OpEntrant, device: torch.device) -> tuple[Work, float]:
    """The calls of an entrant, and its error; raises where it is wrong or does not run."""
    spec = entrant.spec or RIVAL_INPUTS
    function = operator_of(entrant, plan.case, device)
    moved = _bytes(plan, spec)
    count = _sets(moved, device)
    sets = [make_operands(plan.case, spec, DTYPES[plan.dtype], device, seed) for seed in range(count)]
    error = check_operator(entrant, function, sets[0], plan.mode, plan.dtype)
    return Work(calls_of(entrant, function, plan.mode, sets), sets[0].nbytes), error


def _sets(moved: int, device: torch.device) -> int:
    """How many sets of inputs to go through, so that none is found in the cache again."""
    if device.type != "cuda":
        return 1
    cache = int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0) or L2_BYTES)
    return max(1, min(MAX_SETS, math.ceil(4 * cache / moved)))


def _bytes(plan: OpPlan, spec: Spec) -> int:
    extra = make_operands(plan.case, spec, DTYPES[plan.dtype], "meta", 0).extra
    return moved_bytes(plan.case, spec.name, plan.mode, extra, DTYPES[plan.dtype].itemsize)


def _row(plan: OpPlan, entrant: OpEntrant, device: torch.device) -> Row:
    case = plan.case
    return Row(
        "op", case.name, entrant.name, plan.mode, entrant.compiled, plan.dtype, device.type, case.batch,
        case.tokens, case.heads, case.dim, case.grid[0], case.grid[1],
    )  # fmt: skip


def _fail(row: Row, failure: Failure) -> None:
    row.status, row.note = failure.status, failure.note


def _fill(row: Row, plan: OpPlan, timing: Timing, ceilings: Ceilings, entrant: OpEntrant) -> None:
    """Times, and what follows from them and the shape."""
    row.graph_ms, row.call_ms, row.spread = timing.graph_ms, timing.call_ms, timing.spread
    row.memory_mib, row.note = timing.memory_mib, timing.note
    moved = _bytes(plan, entrant.spec or RIVAL_INPUTS)
    flops = count_flops(entrant, plan.case, plan.mode)
    row.floor_ms, row.gflop = moved / ceilings.copy * 1e3, flops / 1e9
    if row.ms:
        row.images_per_s = plan.case.batch / row.ms * 1e3
        row.of_floor, row.bandwidth_tb_s = row.ms / row.floor_ms, moved / row.ms / 1e9
        row.tflop_s = flops / row.ms / 1e9


def plans(
    cases: Sequence[OpCase], modes: Sequence[str], dtypes: Sequence[str], entrants: Sequence[OpEntrant]
) -> list[OpPlan]:
    """Every case in every mode and type."""
    return [
        OpPlan(case, mode, dtype, tuple(entrants)) for dtype in dtypes for case in cases for mode in modes
    ]  # fmt: skip


def crossovers(rows: Sequence[Row]) -> Iterator[tuple[str, float | None, int, int]]:
    """The number of tokens from which a linear entrant is faster than SDPA, for an image, on shapes of one width.

    Yields (what, tokens, fewest, most): tokens is None where it is never faster up to `most`, and equals `fewest` where
    it always is. Between two shapes the ratio of the times is taken as a power of the number of tokens.
    """
    series: dict[tuple[Any, ...], dict[int, dict[str, float]]] = {}
    for row in rows:
        if row.kind == "op" and row.ms and row.tokens:
            key = (row.heads, row.dim, row.mode, row.dtype, row.device)
            series.setdefault(key, {}).setdefault(row.tokens, {})[row.entrant] = row.ms / row.batch
    for (heads, dim, mode, dtype, _), points in series.items():
        names = {name for times in points.values() for name in times} - {SDPA, MOVE}
        for name in sorted(name for name in names if not name.startswith("softmax")):
            ratios = [(n, points[n][name] / points[n][SDPA]) for n in sorted(points) if {name, SDPA} <= set(points[n])]
            if len(ratios) > 1:
                what = f"{name}, {heads} heads of {dim}, {mode}, {dtype}"
                yield what, _crossing(ratios), ratios[0][0], ratios[-1][0]


def _crossing(ratios: Sequence[tuple[int, float]]) -> float | None:
    """Where a ratio, given at rising numbers of tokens, falls to one for good."""
    slow = [i for i, (_, ratio) in enumerate(ratios) if ratio > 1]
    if not slow:
        return float(ratios[0][0])
    if slow[-1] == len(ratios) - 1:
        return None
    (n, above), (m, below) = ratios[slow[-1]], ratios[slow[-1] + 1]
    part = math.log(above) / (math.log(above) - math.log(below))
    return n * (m / n) ** part
