"""`sightline bench`: what operators and models cost in time and memory, beside their rivals."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.cli.bench_wish import read_wish
from sightline.cli.options import Command, UsageError, option, positional
from sightline.util.names import nearest

if TYPE_CHECKING:
    from sightline.bench.select import Wish
    from sightline.bench.session import Session

WHAT = ("ops", "models", "surprises")
PRESETS = ("table", "goals", "soft")
# Options that only some kinds of run have.
ONLY = {
    "ops": ("mechanism", "shape", "backend"),
    "models": ("model", "attention", "img_size", "batch_size", "window", "jobs"),
    "surprises": ("mechanism", "shape"),
}
# What the presets of the goals and of SOFT say themselves.
FIXED = (
    "mechanism", "shape", "backend", "model", "attention", "img_size", "batch_size", "window", "rivals", "mode",
    "compile",
)  # fmt: skip
FOOTNOTE = (
    "* The public code, measured elsewhere: H200, torch 2.11, bfloat16 (SOFT: TF32), plain calls. Not part of this run."
)


@dataclass(frozen=True)
class Options:
    """Measure attention operators (ops), models (models), or first calls, new sizes and batch composition (surprises).

    Without options, ops and models go through the table of shapes and models of docs/performance.md. Rivals run in the
    same run, in turns. On CUDA the time is taken by graph replay and by plain calls, on a CPU by the wall clock. An
    operator whose output or gradient does not match the float32 reference is not timed; the run goes on.

    The exit status is 0 if all was measured, 1 if an entrant was refused or failed, 2 for bad input. Memory that does
    not suffice is a result, not a failure; so is a goal that is not met.
    """

    what: str | None = positional("ops, models or surprises; may be left out with a preset but table", optional=True)
    preset: str | None = option("table; goals: what the goals of the project need, and whether they are met; soft: the "
                                "same for SOFT and SOFT++, at 784 to 65,536 tokens", metavar="NAME")  # fmt: skip
    mechanism: tuple[str, ...] = option(
        "ops: mechanism such as inline or linear(phi=elu1); may be repeated", default=(), metavar="NAME"
    )
    shape: tuple[str, ...] = option(
        "ops: batch,heads,dim,tokens such as 64,6,32,1+40x40, or a name of the table; may be repeated",
        default=(), metavar="SHAPE",
    )  # fmt: skip
    backend: str | None = option("ops: triton, torch or both with a comma; by default all there are", metavar="NAMES")
    model: tuple[str, ...] = option(
        "models: any model of sightline or timm, with arguments as in inline_swin_tiny:depths=2,2,2,2; repeatable",
        default=(), metavar="NAME",
    )  # fmt: skip
    attention: tuple[str, ...] = option(
        "models: the same models with another mechanism or pattern too, such as performer(features=64); repeatable",
        default=(), metavar="PATTERN",
    )  # fmt: skip
    img_size: str | None = option("models: sizes with commas between them, such as 224,384x640", metavar="SIZES")
    batch_size: str | None = option("models: one, or one a size; training takes a quarter", metavar="SIZES")
    window: str | None = option("models: sides of attention windows in tokens, such as 7,14,28,56 (Swin)",
                                metavar="SIDES")  # fmt: skip
    rivals: str | None = option("ops: sdpa,move; models: softmax,none,timm; off for none at all", metavar="NAMES")
    mode: str | None = option("forward, forward+backward, train (models); with commas between them", metavar="MODES")
    dtype: str | None = option("bfloat16 (usual on CUDA), float16, float32 (usual on a CPU), tf32", metavar="DTYPES")
    compile: str = option("no, yes or both: through torch.compile; by default no", default="no", metavar="WHICH")
    device: str | None = option("cuda or cpu; by default cuda where there is one", metavar="NAME")
    budget: int = option("milliseconds spent on each entrant after warm-up; by default 150", default=150, metavar="MS")
    jobs: int = option("models: processes that compile ahead of the run; by default 1", default=1, metavar="N")
    out: str = option("folder for the results; by default results", default="results", metavar="FOLDER")
    force: bool = option("replace results of the same name instead of numbering them", default=False)
    plot: bool = option("draw time, throughput and memory against size, as PNG beside the results", default=False)
    json: bool = option("print the results as JSON", default=False)


def run(options: Options) -> int:
    """Plan, measure, print; the files last."""
    kinds = _kinds(options)
    _check_options(options, kinds)
    if options.plot:
        from sightline.bench.plot import require

        require()
    from sightline.bench import results, session

    wish = read_wish(options)
    plans, mechanisms = _plans(options, kinds, wish)
    about = results.describe_run(_command(options), wish.device)
    stem = results.file_stem(_name(options, kinds), _dtypes(plans, wish), about)
    writer = results.Writer(Path(options.out), stem, options.force)
    report = results.Report(about)
    work = session.Session(report, writer, wish.device, float(options.budget))
    try:
        _measure(work, plans, mechanisms, wish, options)
    except KeyboardInterrupt:
        print(f"sightline: what was measured until now is in {writer.json} and {writer.csv}", file=sys.stderr)
        raise
    return _finish(options, work)


def _kinds(options: Options) -> tuple[str, ...]:
    """What to run, in order."""
    if options.preset is not None and options.preset not in PRESETS:
        raise UsageError(f"--preset: no preset {options.preset!r}; give one of {', '.join(PRESETS)}")
    if options.what is None:
        if options.preset in ("goals", "soft"):
            return WHAT if options.preset == "goals" else ("ops", "models")
        raise UsageError(f"bench what? give one of {', '.join(WHAT)}, or --preset goals for all goals")
    if options.what not in WHAT:
        remedy = nearest(options.what, WHAT, f"give one of {', '.join(WHAT)}")
        raise UsageError(f"bench: no benchmark {options.what!r}; {remedy}")
    if (options.preset, options.what) == ("soft", "surprises"):
        raise UsageError("--preset soft: it has ops and models; for surprises give --mechanism soft instead")
    return (options.what,)


def _name(options: Options, kinds: Sequence[str]) -> str:
    """What the files of a run begin with."""
    if options.preset == "soft":
        return "soft" if len(kinds) > 1 else f"soft_{kinds[0]}"
    return "goals" if options.preset == "goals" and len(kinds) > 1 else kinds[0]


def _dtypes(plans: Sequence[Any], wish: "Wish") -> tuple[str, ...]:
    """The types of a run."""
    return tuple(dict.fromkeys(plan.dtype for plan in plans)) or wish.dtypes


def _check_options(options: Options, kinds: tuple[str, ...]) -> None:
    """Refuse options that would be ignored, and numbers that make no sense."""
    usual = {item.name: item.default for item in fields(Options)}
    allowed = {name for kind in kinds for name in ONLY[kind]}
    for kind, names in ONLY.items():
        for name in names:
            if name not in allowed and getattr(options, name) != usual[name]:
                raise UsageError(f"--{name.replace('_', '-')} goes with `sightline bench {kind}`; leave it out")
    if options.preset in ("goals", "soft"):
        for name in FIXED:
            if getattr(options, name) != usual[name]:
                flag = f"--{name.replace('_', '-')}"
                raise UsageError(f"{flag}: --preset {options.preset} fixes it; leave one of them out")
    for name in ("budget", "jobs"):
        if getattr(options, name) < 1:
            raise UsageError(f"--{name}: {getattr(options, name)} is too small; give at least 1")


def _plans(options: Options, kinds: Sequence[str], wish: "Wish") -> tuple[list[Any], tuple[str, ...]]:
    """The plans of operators and models, and the mechanisms whose surprises are measured."""
    from sightline.bench.select import goal_plans, model_plans, op_plans, soft_plans
    from sightline.layers.spec import Spec

    mechanisms = wish.mechanisms or ("inline",)
    for mechanism in mechanisms:
        Spec.parse(mechanism)
    surprises = mechanisms if "surprises" in kinds else ()
    if options.preset == "soft":
        if wish.device.type != "cuda":
            raise UsageError(f"--preset soft: it is for a card, not for a {wish.device.type}; use --device cuda")
        what = "all" if len(kinds) > 1 else kinds[0]
        models = wish.dtypes if options.dtype else ("bfloat16", "tf32")  # the public figures are in TF32
        return soft_plans(what, wish.device, wish.dtypes, models), ()
    if options.preset == "goals":
        what = "all" if len(kinds) > 1 else kinds[0]
        surprises = surprises if wish.device.type == "cuda" else ()
        plans = goal_plans(what, wish.device, wish.dtypes)
        if not plans and not surprises:
            raise UsageError(f"--preset goals: no goal of {what} is for a {wish.device.type}; use --device cuda")
        return plans, surprises
    if "ops" in kinds:
        return list(op_plans(wish)), ()
    return (list(model_plans(wish)) if "models" in kinds else []), surprises


def _measure(work: "Session", plans: Sequence[Any], mechanisms: Sequence[str], wish: "Wish", options: Options) -> None:
    """Everything, with progress on the standard error."""
    from sightline.cli.bench_tables import summary
    from sightline.cli.output import Progress

    compiled = sum(len(plan.networks) for plan in plans if plan_compiles(plan))
    if options.jobs > 1 and compiled:
        with Progress("compiled", compiled) as progress:
            work.compile_ahead(plans, options.jobs, progress.step)
    with Progress("measured", len(plans) + len(mechanisms) * len(wish.dtypes)) as progress:
        for plan in plans:
            progress.begin(str(plan))
            progress.done(summary(work.run(plan)))
        for mechanism in mechanisms:
            for dtype in wish.dtypes:
                progress.begin(f"{mechanism} {dtype} surprises")
                found = work.surprise(mechanism, dtype, **({"shapes": wish.shapes} if wish.shapes else {}))
                progress.done(f"{len(found)} findings")


def plan_compiles(plan: Any) -> bool:
    """Whether it is a plan of compiled models."""
    return hasattr(plan, "networks") and bool(plan.compiled)


def _finish(options: Options, work: "Session") -> int:
    """Tables or JSON; what was refused on the standard error; the files."""
    from sightline.bench.goals import evaluate
    from sightline.bench.published import public_figure
    from sightline.bench.session import went_wrong
    from sightline.cli import bench_tables as tables

    report, writer = work.report, work.writer
    ops, models = ([row for row in report.rows if row.kind == kind] for kind in ("op", "model"))
    written = [writer.json, writer.csv]
    if options.plot:
        from sightline.bench.plot import plot_all

        written += plot_all(report, writer.json.with_suffix(""))
    if options.json:
        print(report.to_json(), end="")
    else:
        if ops:
            tables.show_ops(ops)
            _say_crossovers(ops)
        if models:
            tables.show_models(models)
        if any(public_figure(row) for row in report.rows):
            print(f"\n{FOOTNOTE}")
        if report.findings:
            tables.show_findings(report.findings)
        if options.preset in ("goals", "soft"):
            tables.show_goals(evaluate(report.rows, report.findings))
        for dtype, ceilings in report.about.get("ceilings", {}).items():
            print(f"\nCeilings, {dtype}: copy {ceilings['copy'] / 1e12:.3g} TB/s, "
                  f"matrix product {ceilings['product'] / 1e12:.3g} TFLOP/s")  # fmt: skip
    wrong = went_wrong(report.rows)
    for row in wrong:
        print(f"sightline: {row.status}: {row.note or row.entrant}", file=sys.stderr)
    print(f"wrote {', '.join(map(str, written))}", file=sys.stderr if options.json else sys.stdout)
    failed = any(item.unit == "failure" for item in report.findings)
    return 1 if wrong or failed else 0


def _say_crossovers(rows: Sequence[Any]) -> None:
    from sightline.bench.run_ops import crossovers

    found = list(crossovers(rows))
    if found:
        print("\nWhere linear overtakes SDPA:")
    for what, tokens, fewest, most in found:
        if tokens is None:
            print(f"  {what}: not up to {most:,} tokens")
        elif tokens <= fewest:
            print(f"  {what}: at {fewest:,} tokens already, the fewest measured")
        else:
            print(f"  {what}: from about {tokens:,.0f} tokens on")


def _command(options: Options) -> str:
    """The command that measures the same again."""
    words = ["sightline", "bench", *([options.what] if options.what else [])]
    for item in fields(options):
        value = getattr(options, item.name)
        if item.name == "what" or value == item.default:
            continue
        flag = f"--{item.name.replace('_', '-')}"
        values = value if isinstance(value, list | tuple) else (value,)
        words += [flag] if value is True else [word for each in values for word in (flag, str(each))]
    return shlex.join(words)


COMMAND = Command(
    Options,
    run,
    help="time and memory of operators and models, beside their rivals",
    examples=(
        "  sightline bench ops\n"
        "  sightline bench ops --mechanism linear --shape 8,6,32,64x64 --mode forward --device cpu\n"
        "  sightline bench models --model inline_pvt_tiny --img-size 224,512 --compile both --plot\n"
        "  sightline bench models --model inline_deit_tiny --attention focused --attention performer\n"
        "  sightline bench models --model inline_swin_tiny --window 7,14,28,56 --mode forward --plot\n"
        "  sightline bench --preset goals --jobs 8\n"
        "  sightline bench ops --preset soft"
    ),
)
