"""Benchmarks of operators and models: time, memory and FLOPs, next to their baselines."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

import torch

from sightline.bench import run_models, run_ops
from sightline.bench.ceilings import Ceilings, measure_ceilings
from sightline.bench.cold_start import SHAPES, measure_cold_start
from sightline.bench.cost import Cost, measure_cost
from sightline.bench.networks import Network
from sightline.bench.plans import Plan, make_plans
from sightline.bench.request import Arguments, Models, Names, Numbers, Request, read_request
from sightline.bench.results import Finding, Report, Row, Writer, describe_run, file_stem
from sightline.bench.run_ops import OpPlan

__all__ = ["Cost", "Finding", "Network", "Report", "Row", "benchmark", "measure_cost"]


class Progress(Protocol):
    """Receives the progress of a run, one step per plan."""

    def begin(self, label: str) -> None: ...

    def done(self, result: str = "") -> None: ...


class _Silent:
    def __init__(self, unit: str, total: int) -> None: ...

    def __enter__(self) -> "_Silent":
        return self

    def __exit__(self, *error: object) -> None: ...

    def begin(self, label: str) -> None: ...

    def done(self, result: str = "") -> None: ...


ProgressMaker = Callable[[str, int], AbstractContextManager[Progress]]


def benchmark(
    what: str | None = None,
    *,
    preset: str | None = None,
    mechanism: Names = None,
    shape: Names = None,
    backend: Names = None,
    model: Models = None,
    attention: Names = None,
    img_size: Numbers = None,
    batch_size: Numbers = None,
    window: Numbers = None,
    baselines: Names = None,
    mode: Names = None,
    dtype: Names = None,
    compile: str = "no",
    device: str | None = None,
    budget: int = 150,
    jobs: int = 1,
    out: str | Path | None = None,
    force: bool = False,
    plot: bool = False,
    progress: ProgressMaker = _Silent,
) -> Report:
    """Measure operators, models or cold starts; the same as `sightline bench`.

    All candidates of a case take turns. On CUDA every call is timed by graph replay and by plain calls, on a CPU by
    wall clock. An operator whose output or gradient does not match the float32 reference is not timed. Without further
    arguments, `ops` and `models` measure the cases of docs/performance.md.

    Args:
        what: "ops", "models" or "cold_start"; optional with the presets "goals" and "soft".
        preset: "table" (default); "goals", everything the speed goals of the project need; "soft", the same for SOFT
            and SOFT++ at 784 to 65,536 tokens.
        mechanism: for ops and cold_start, mechanisms such as "inline" or "linear(phi=elu1)".
        shape: for ops and cold_start, "batch,heads,dim,tokens" such as "64,6,32,1+40x40", or names of the table.
        backend: for ops, "triton", "torch" or both; by default all that exist.
        model: for models, names of sightline or timm, or a `Network` with arguments.
        attention: for models, mechanisms or patterns to measure the same models with.
        img_size: for models, sides such as 224 or "384x640".
        batch_size: for models, one, or one per size; training uses a quarter.
        window: for models, sides of attention windows in tokens (Swin).
        baselines: for ops "sdpa", "move"; for models "softmax", "none", "timm"; "off" for none.
        mode: "forward", "forward+backward", and for models "train".
        dtype: "bfloat16" (default on CUDA), "float16", "float32" (default on a CPU), "tf32".
        compile: "no", "yes" or "both", through torch.compile.
        device: "cuda" or "cpu"; by default cuda if available.
        budget: milliseconds spent on each candidate after warm-up.
        jobs: for models, processes that compile ahead of the run.
        out: folder for the results as JSON and CSV, which are written after every case; None writes no files.
        force: replace results of the same name instead of numbering them.
        plot: also draw PNG figures, next to the results; needs `out` and matplotlib.
        progress: makes a context manager that receives the progress, from a unit and a number of steps.

    Returns:
        The rows, findings and files of the run; `Report.failures` lists rejected and failed candidates.

    Raises:
        InputError: an argument cannot be used; the message begins with its name.
        KeyboardInterrupt: the run was interrupted; its arguments are the files with what was measured so far.

    Example:
        >>> from sightline.bench import benchmark
        >>> report = benchmark("ops", shape="2,2,8,4x4", mode="forward", device="cpu", budget=1)
        >>> [(row.candidate, row.status) for row in report]
        [('inline reference', 'ok'), ('sdpa', 'ok'), ('move', 'ok')]
    """
    given = Arguments(what, preset, mechanism, shape, backend, model, attention, img_size, batch_size, window,
                      baselines, mode, dtype, compile, device, budget, jobs)  # fmt: skip
    request = read_request(given)
    if plot:
        from sightline.bench.plots import require_matplotlib

        require_matplotlib()
    plans, mechanisms = make_plans(request)
    report = Report(describe_run(given.command(), request.device))
    writer = None
    if out is not None:
        dtypes = tuple(dict.fromkeys(plan.dtype for plan in plans)) or request.dtypes
        writer = Writer(Path(out), file_stem(_stem(request), dtypes, report.about), force)
        report.files = [writer.json, writer.csv]
    run = _Run(report, writer, request.device, float(budget))
    try:
        if jobs > 1:
            run.compile_ahead(plans, jobs, progress)
        run.measure(plans, mechanisms, request, progress)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(*report.files) from None
    if plot and writer is not None:
        from sightline.bench.plots import plot_all

        report.files += plot_all(report, writer.json.with_suffix(""))
    return report


def _stem(request: Request) -> str:
    """What the file names of a run begin with."""
    several = len(request.what) > 1
    if request.preset == "soft":
        return "soft" if several else f"soft_{request.what[0]}"
    return "goals" if several else request.what[0]


class _Run:
    """Measures one plan after another; every result is written as soon as it is known."""

    def __init__(self, report: Report, writer: Writer | None, device: torch.device, budget_ms: float) -> None:
        self.report, self.writer, self.device, self.budget_ms = report, writer, device, budget_ms
        self._ceilings: dict[str, Ceilings] = {}

    def compile_ahead(self, plans: list[Plan], jobs: int, progress: ProgressMaker) -> None:
        todo = [plan for plan in plans if not isinstance(plan, OpPlan) and plan.compiled]
        with progress("compiled", sum(len(plan.networks) for plan in todo)) as steps:

            def done(label: str) -> None:
                steps.begin(label)
                steps.done()

            run_models.compile_ahead(todo, self.device, jobs, done)

    def measure(
        self, plans: list[Plan], mechanisms: tuple[str, ...], request: Request, progress: ProgressMaker
    ) -> None:
        with progress("measured", len(plans) + len(mechanisms) * len(request.dtypes)) as steps:
            for plan in plans:
                steps.begin(str(plan))
                rows = self.plan(plan)
                self.report.rows += rows
                self.write()
                steps.done(", ".join(f"{row.candidate} {_summary(row)}" for row in rows))
            for mechanism in mechanisms:
                for dtype in request.dtypes:
                    steps.begin(f"{mechanism} {dtype} cold start")
                    found = self.cold_start(mechanism, dtype, request)
                    self.report.findings += found
                    self.write()
                    steps.done(f"{len(found)} findings")

    def plan(self, plan: Plan) -> list[Row]:
        ceilings = self.ceilings(plan.dtype)
        if isinstance(plan, OpPlan):
            return run_ops.run_plan(plan, self.device, ceilings, self.budget_ms)
        return run_models.run_plan(plan, self.device, self.budget_ms)

    def ceilings(self, dtype: str) -> Ceilings:
        """Measured once per run and dtype, when first needed."""
        if dtype not in self._ceilings:
            self._ceilings[dtype] = found = measure_ceilings(self.device, dtype, self.budget_ms)
            self.report.about.setdefault("ceilings", {})[dtype] = asdict(found)
        return self._ceilings[dtype]

    def cold_start(self, mechanism: str, dtype: str, request: Request) -> list[Finding]:
        """A failure is a finding too; the run continues."""
        try:
            return measure_cold_start(mechanism, dtype, self.device, request.shapes or SHAPES)
        except Exception as error:
            note = " ".join(str(error).split())[:200]
            return [Finding(f"{mechanism} {dtype}: not measured", 1, "failure", 0, note)]

    def write(self) -> None:
        if self.writer is not None:
            self.writer.write(self.report)


def _summary(row: Row) -> str:
    return row.status if row.ms is None else f"{row.ms:.3g} ms"
