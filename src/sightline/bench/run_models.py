"""Measure models: build every candidate of a plan, check it, and time all in turns."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context

import torch

from sightline.bench.cases import Grid, ModelCase, format_size
from sightline.bench.check import MismatchError
from sightline.bench.clock import Failure, Timing, Work, explain, measure, measuring
from sightline.bench.cost import measure_cost
from sightline.bench.networks import Network, build, check_job, make_job
from sightline.bench.precision import precision
from sightline.bench.results import REJECTED, Row


@dataclass(frozen=True)
class ModelPlan:
    """A case in one mode, eager or compiled, with the networks to time in turns."""

    case: ModelCase
    mode: str
    dtype: str
    compiled: bool
    networks: tuple[Network, ...]

    @property
    def batch(self) -> int:
        """Training uses a quarter of the inference batch, unless the case sets its own."""
        return self.case.batch if self.mode == "forward" else self.case.train_batch or max(1, self.case.batch // 4)

    def __str__(self) -> str:
        return f"{self.case.name} {self.mode}{' compiled' if self.compiled else ''} {self.dtype}"


def run_plan(plan: ModelPlan, device: torch.device, budget_ms: float) -> list[Row]:
    """The rows of a plan, in the order of its networks; a failure becomes the status of its row."""
    rows = {network.label: _row(plan, network, device) for network in plan.networks}
    if plan.compiled:
        torch._dynamo.reset()
    with measuring(device), precision(plan.dtype):
        works: dict[str, Work] = {}
        for network in plan.networks:
            row = rows[network.label]
            try:
                job = make_job(network, plan.case.size, plan.batch, plan.mode, plan.dtype, plan.compiled, device)
                row.error = check_job(job, f"{network.label} {format_size(plan.case.size)}", plan.dtype)
                works[network.label] = Work([job.call], job.held_bytes)
            except MismatchError as error:
                row.status, row.note = REJECTED, str(error)
            except Exception as error:  # the others are still measured
                failure = explain(error)
                row.status, row.note = failure.status, failure.note
        for label, outcome in measure(works, device, budget_ms).items():
            _fill(rows[label], outcome, plan.case.size, next(n for n in plan.networks if n.label == label))
        works.clear()
    return list(rows.values())


def _row(plan: ModelPlan, network: Network, device: torch.device) -> Row:
    height, width = plan.case.size
    return Row(
        "model", plan.case.name, network.label, plan.mode, plan.compiled, plan.dtype, device.type, plan.batch,
        height=height, width=width, window=network.window,
    )  # fmt: skip


def _fill(row: Row, outcome: Timing | Failure, size: Grid, network: Network) -> None:
    if isinstance(outcome, Failure):
        row.status, row.note = outcome.status, outcome.note
        return
    row.graph_ms, row.call_ms, row.spread = outcome.graph_ms, outcome.call_ms, outcome.spread
    row.memory_mib, row.note = outcome.memory_mib, outcome.note
    row.gflop = model_gflop(network, size) * row.batch * (1 if row.mode == "forward" else 3)
    if row.ms:
        row.images_per_s = row.batch / row.ms * 1e3
        row.tflop_s = row.gflop / row.ms


_gflops: dict[tuple[str, Grid], float] = {}


def model_gflop(network: Network, size: Grid) -> float:
    """Billions of floating-point operations per image, two per multiply-add."""
    key = network.label, size
    if key not in _gflops:
        with torch.device("meta"):
            model = build(network, size)
        _gflops[key] = 2 * measure_cost(model, (3, *size)).macs / 1e9
    return _gflops[key]


def plans(
    cases: Sequence[tuple[ModelCase, Sequence[Network]]],
    modes: Sequence[str],
    dtypes: Sequence[str],
    compiled: Sequence[bool],
) -> list[ModelPlan]:
    """Every case in every dtype and mode, eager and/or compiled."""
    return [
        ModelPlan(case, mode, dtype, each, tuple(networks))
        for dtype in dtypes
        for case, networks in cases
        for mode in modes
        for each in compiled
    ]


def compile_ahead(
    todo: Sequence[ModelPlan], device: torch.device, jobs: int, done: Callable[[str], None] = lambda label: None
) -> None:
    """Fill torch's compile caches in `jobs` processes, so that the run itself, in one process, compiles little.

    Failures are ignored here; the run reports them.
    """
    tasks = [(plan, network) for plan in todo if plan.compiled for network in plan.networks]
    if jobs < 2 or not tasks:
        return
    with ProcessPoolExecutor(jobs, get_context("spawn"), _prepare, (torch.get_num_threads(),)) as pool:
        futures = {pool.submit(_compile, plan, network, str(device)): network.label for plan, network in tasks}
        for future in as_completed(futures):
            with suppress(Exception):
                future.result()
            done(futures[future])


def _prepare(threads: int) -> None:
    """Use the threads of the run, which CPU code is generated for, and few to compile, as there are many processes."""
    torch.set_num_threads(threads)
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "2"


def _compile(plan: ModelPlan, network: Network, device: str) -> None:
    target = torch.device(device)
    torch._dynamo.reset()
    with measuring(target), precision(plan.dtype):
        job = make_job(network, plan.case.size, plan.batch, plan.mode, plan.dtype, True, target)
        job.call()
        del job
    if target.type == "cuda":
        torch.cuda.empty_cache()
