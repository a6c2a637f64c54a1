"""Benchmarks of operators and models: time, memory and FLOPs, next to their baselines."""

from pathlib import Path

from sightline.bench.cost import Cost, measure_cost
from sightline.bench.networks import Network
from sightline.bench.request import (
    Models,
    Names,
    Numbers,
    command_of,
    given_arguments,
    make_plans,
    measured_by,
    read_request,
)
from sightline.bench.results import Finding, Report, Row, describe_run, file_stem, result_files
from sightline.bench.run import ProgressMaker, Silent, compile_ahead, run_all
from sightline.util.files import check_writable

__all__ = ["Cost", "Finding", "Network", "Report", "Row", "benchmark", "measure_cost"]


def benchmark(
    what: str | None = None,
    *,
    preset: str | None = None,
    only: Names = None,
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
    compile: Names = "no",
    device: str | None = None,
    budget: int = 150,
    jobs: int = 1,
    out: str | Path | None = None,
    force: bool = False,
    add: bool = False,
    plot: bool = False,
    progress: ProgressMaker = Silent,
) -> Report:
    """Measure operators, modules, models or cold starts; the same as `sightline bench`.

    All candidates of a case take turns. On CUDA every call is timed by graph replay and by plain calls, on a CPU by
    plain calls. An operator whose output or gradient does not match the float32 reference is not timed. Without further
    arguments, `ops` and `models` measure the cases of docs/performance.md.

    Args:
        what: "ops", "modules" (attention with its projections), "models" or "cold_start"; optional with presets.
        preset: "table" (default); "goals", everything the speed goals of the kernels need; "soft", the same for SOFT
            and SOFT++ at 784 to 65,536 tokens; "plain", what users do with a model, by plain calls: eager, compiled and
            with CUDA graphs.
        only: for the preset "plain", some of its parts: "train", "inference", "latency" (one image at a time), "host"
            (time of the host), "families", "peers".
        mechanism: for ops, modules and cold_start, mechanisms such as "inline" or "linear(phi=elu1)".
        shape: for ops, modules and cold_start, "batch,heads,dim,tokens" such as "64,6,32,1+40x40", or names of the
            table.
        backend: for ops, "triton", "torch" or both; by default all that exist.
        model: for models, names of sightline or timm, or a `Network` with arguments.
        attention: for models, mechanisms or patterns to measure the same models with.
        img_size: for models, sides such as 224 or "384x640".
        batch_size: for models, one, or one per size; training uses a quarter.
        window: for models, sides of attention windows in tokens (Swin).
        baselines: for ops "sdpa", "move", "product" (q * k + v: what any call costs), "flex_attention", "flash_bla";
            for modules "timm"; for models "softmax", "none", "timm", "peer" (timm's EfficientViT); "off" for none.
        mode: "forward", "forward+backward", and for models "train" and "latency", which is one image at a time.
        dtype: "bfloat16" (default on CUDA), "float16", "float32" (default on a CPU), "tf32".
        compile: how calls are made: "no", "yes" (through torch.compile), "reduce-overhead" (with CUDA graphs), several
            of them, "both" for the first two or "all".
        device: "cuda" or "cpu"; by default cuda if available.
        budget: milliseconds spent on each candidate after warm-up.
        jobs: processes that compile ahead of the run.
        out: folder for the results as JSON and CSV, which are written after every case; None writes no files.
        force: replace results of the same name instead of numbering them.
        add: add to results of the same name if they are of the same machine, commit and versions.
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
    given = given_arguments(locals())
    request = read_request(given)
    if plot:
        from sightline.bench.plots import new_figure

        new_figure(1, 1)  # raises if matplotlib is missing
    plans = make_plans(request)
    if out is not None:
        check_writable(out, "out")
    report = Report({"preset": request.preset, **describe_run(command_of(given), request.target)})
    if out is not None:
        dtypes = tuple(dict.fromkeys(plan.dtype for plan in plans))
        stem = file_stem(request.title, dtypes, report.about)
        report.files = result_files(Path(out), stem, force)
        if add and (before := Path(out, f"{stem}.json")).exists() and report.extend(before, measured_by(plans)):
            report.files = result_files(Path(out), stem, replace=True)
    try:
        compile_ahead(plans, request.target, jobs, progress)
        run_all(plans, report, request.target, budget, progress)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(*report.files) from None
    if plot and report.files:
        from sightline.bench.plots import plot_all

        report.files += plot_all(report, report.files[0].with_suffix(""))
    return report
