"""Measure plans one after another; every result is written as soon as it is known."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict
from multiprocessing import get_context
from typing import Protocol

import torch

from sightline.bench.candidates import DTYPES, Candidate, MismatchError, MissingError, Plan, precision
from sightline.bench.cases import OpCase
from sightline.bench.clock import Timing, Work, explain, measure, measuring
from sightline.bench.cold_start import ColdStart
from sightline.bench.networks import Network
from sightline.bench.results import MISSING, REJECTED, Report, Row
from sightline.bench.tables import limit_of, pick
from sightline.util.errors import RunError

CEILING_SIZES = {"cuda": (2**30, 8192), "cpu": (2**27, 1024)}  # bytes to copy, side of the matrices to multiply


class Progress(Protocol):
    """Receives the progress of a run, one step per plan."""

    def begin(self, label: str) -> None: ...

    def done(self, result: str = "") -> None: ...


class Silent:
    """Progress that prints nothing."""

    def __init__(self, unit: str, total: int) -> None: ...

    def __enter__(self) -> "Silent":
        return self

    def __exit__(self, *error: object) -> None: ...

    def begin(self, label: str) -> None: ...

    def done(self, result: str = "") -> None: ...


ProgressMaker = Callable[[str, int], AbstractContextManager[Progress]]


def measure_ceilings(device: torch.device, dtype: str, budget_ms: float) -> dict[str, float]:
    """The best the machine can do: `copy` in bytes per second, read and written, `product` in FLOP per second.

    Copies a tensor far larger than any cache, and multiplies two square matrices.
    """
    nbytes, side = CEILING_SIZES[device.type]
    with measuring(device), precision(dtype), torch.no_grad():
        source = torch.randn(nbytes // 2, device=device).to(torch.bfloat16)
        target = torch.empty_like(source)
        a, b = (torch.randn(side, side, device=device).to(DTYPES[dtype]) for _ in range(2))
        # A kernel that reads and writes: inside a CUDA graph, `copy_` would use the slower copy engine.
        works = {"copy": Work([lambda: torch.neg(source, out=target)]), "product": Work([lambda: a @ b])}
        timings = measure(works, device, budget_ms)
    for name, timing in timings.items():
        if timing.ms is None:
            raise RunError(f"the {name} speed of this machine cannot be measured: {timing.note}")
    copy, product = (timing.ms or 0.0 for timing in timings.values())
    return {"copy": 2 * nbytes / copy * 1e3, "product": 2 * side**3 / product * 1e3}


def run_all(
    plans: Sequence[Plan | ColdStart],
    report: Report,
    device: torch.device,
    budget_ms: float,
    progress: ProgressMaker,
) -> None:
    """Add the results of all plans to the report, and write it after each; ceilings are measured once per dtype."""
    with progress("measured", len(plans)) as steps:
        for plan in plans:
            steps.begin(str(plan))
            if isinstance(plan, ColdStart):
                findings = plan.run(device)
                report.findings += findings
                result = f"{len(findings)} findings"
            else:
                ceilings = report.about.setdefault("ceilings", {})
                if plan.dtype not in ceilings:
                    ceilings[plan.dtype] = measure_ceilings(device, plan.dtype, budget_ms)
                rows = run_plan(plan, device, ceilings[plan.dtype]["copy"], budget_ms)
                report.rows += rows
                result = ", ".join(f"{r.candidate} {r.status if r.ms is None else f'{r.ms:.3g} ms'}" for r in rows)
            report.write()
            steps.done(result)


def run_plan(plan: Plan, device: torch.device, copy_speed: float, budget_ms: float) -> list[Row]:
    """The rows of a plan, in the order of its candidates; a failure becomes the status of its row.

    `copy_speed`, in bytes per second, gives the floor of an operator.
    """
    named = {f"{i} {candidate.label}": candidate for i, candidate in enumerate(plan.candidates)}
    rows = {name: _row(plan, candidate, device) for name, candidate in named.items()}
    if any(candidate.compiled for candidate in plan.candidates):
        torch._dynamo.reset()
    with measuring(device), precision(plan.dtype):
        works: dict[str, Work] = {}
        for name, candidate in named.items():
            row = rows[name]
            try:
                works[name] = work = candidate.prepare(plan, device)
                row.error = work.error
            except MismatchError as error:
                row.status, row.note = REJECTED, str(error)
            except MissingError as error:
                row.status, row.note = MISSING, str(error)
            except Exception as error:  # the others are still measured
                vars(row).update(asdict(explain(error)))
        timings = measure(works, device, budget_ms, plan.plain, host=plan.plain and isinstance(plan.case, OpCase))
        works.clear()
    for name, timing in timings.items():
        _fill(rows[name], named[name], plan, timing, copy_speed)
    found = list(rows.values())
    for row in found:
        row.over_timm = _speed(row, pick(found, row, lambda label: label.startswith("timm ")))
        row.of_none = _speed(row, limit_of(found, row))
    return found


def _speed(row: Row, other: Row | None) -> float | None:
    """Relative to another row; None for itself."""
    return other.ms / row.ms if other is not None and other is not row and other.ms and row.ms else None


def _row(plan: Plan, candidate: Candidate, device: torch.device) -> Row:
    case = plan.case
    row = Row(candidate.kind, case.name, candidate.label, plan.mode, candidate.compiled, plan.dtype, device.type,
              plan.batch, compile_mode=candidate.compile_mode)  # fmt: skip
    if isinstance(case, OpCase):
        row.tokens, row.heads, row.dim = case.tokens, case.heads, case.dim
    row.height, row.width = case.grid if isinstance(case, OpCase) else case.size
    row.window = candidate.window if isinstance(candidate, Network) else None
    return row


def _fill(row: Row, candidate: Candidate, plan: Plan, timing: Timing, copy_speed: float) -> None:
    """Times, and what follows from them and the case."""
    vars(row).update(asdict(timing))
    if row.ms is None:
        return
    if plan.plain:
        row.graph_ms, row.gpu_ms = None, row.graph_ms
    if isinstance(candidate, Network):
        row.params = candidate.cost((row.height or 0, row.width or 0)).params
    row.gflop, row.images_per_s = candidate.flops(plan) / 1e9, plan.batch / row.ms * 1e3
    row.tflop_s = row.gflop / row.ms
    if moved := candidate.moved_bytes(plan):
        row.floor_ms, row.bandwidth_tb_s = moved / copy_speed * 1e3, moved / row.ms / 1e9
        row.of_floor = row.ms / row.floor_ms


def compile_ahead(plans: Sequence[Plan | ColdStart], device: torch.device, jobs: int, progress: ProgressMaker) -> None:
    """Fill torch's compile caches in `jobs` processes, so that the run itself, in one process, compiles little.

    Failures are ignored here; the run reports them.
    """
    tasks = [(plan, each) for plan in plans if isinstance(plan, Plan) for each in plan.candidates if each.compiled]
    if jobs < 2 or not tasks:
        return
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), _prepare, (torch.get_num_threads(),))
    with progress("compiled", len(tasks)) as steps, pool:
        futures = {pool.submit(_compile, plan, each, device): each.label for plan, each in tasks}
        for future in as_completed(futures):
            with suppress(Exception):
                future.result()
            steps.begin(futures[future])
            steps.done()


def _prepare(threads: int) -> None:
    """Use the threads of the run, which CPU code is generated for, and few to compile, as there are many processes."""
    torch.set_num_threads(threads)
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "2"


def _compile(plan: Plan, candidate: Candidate, device: torch.device) -> None:
    torch._dynamo.reset()
    with measuring(device), precision(plan.dtype):
        candidate.prepare(plan, device).calls[0]()
    if device.type == "cuda":
        torch.cuda.empty_cache()
