"""`sightline bench`: measure operators and models in time and memory, next to their baselines."""

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sightline.cli.options import Command, option, positional
from sightline.cli.output import Column, Progress, show
from sightline.util.text import say

if TYPE_CHECKING:
    from sightline.bench import Report
    from sightline.bench.tables import Table


@dataclass(frozen=True)
class Options:
    """Measure attention operators (ops), attention modules with their projections (modules), models (models), or first
    calls, new sizes and batches (cold_start).

    Without options, ops and models measure the cases of docs/performance.md. Baselines run in the same run, in turns.
    On CUDA every call is timed by graph replay and by plain calls, on a CPU by plain calls. An operator whose output or
    gradient does not match the float32 reference is not timed; the run continues.

    The exit status is 0 if everything was measured, 1 if a candidate was rejected or failed, 2 for bad input. Running
    out of memory is a result, not a failure.
    """

    what: str | None = positional("ops, modules, models or cold_start; optional with a preset", optional=True)
    preset: str | None = option("table; goals: everything that the project's speed goals need; "
                                "soft: the same for SOFT and SOFT++, at 784 to 65,536 tokens; "
                                "plain: training, inference, latency by plain calls, eager, compiled and with graphs",
                                metavar="NAME")  # fmt: skip
    only: str | None = option("plain: some of train,inference,latency,host,families,peers", metavar="PARTS")
    mechanism: tuple[str, ...] = option(
        "ops, modules: mechanism such as inline or linear(phi=elu1); can be repeated", default=(), metavar="NAME"
    )
    shape: tuple[str, ...] = option(
        "ops, modules: batch,heads,dim,tokens such as 64,6,32,1+40x40, or a name of the table; can be repeated",
        default=(), metavar="SHAPE",
    )  # fmt: skip
    backend: str | None = option("ops: triton, torch or both, comma-separated; by default all that exist",
                                 metavar="NAMES")  # fmt: skip
    model: tuple[str, ...] = option(
        "models: any model of sightline or timm, with arguments as in inline_swin_tiny:depths=2,2,2,2; can be repeated",
        default=(), metavar="NAME",
    )  # fmt: skip
    attention: tuple[str, ...] = option(
        "models: also the same models with this mechanism or pattern, such as performer(features=64); can be repeated",
        default=(), metavar="PATTERN",
    )  # fmt: skip
    img_size: str | None = option("models: comma-separated sizes, such as 224,384x640", metavar="SIZES")
    batch_size: str | None = option("models: one, or one per size; training uses a quarter", metavar="SIZES")
    window: str | None = option("models: sides of attention windows in tokens, such as 7,14,28,56 (Swin)",
                                metavar="SIDES")  # fmt: skip
    baselines: str | None = option("ops: sdpa,move,product,flex_attention,flash_bla; modules: timm; "
                                   "models: softmax,none,timm,peer; off for none", metavar="NAMES")  # fmt: skip
    mode: str | None = option("comma-separated: forward, forward+backward; models: train, latency (of one image)",
                              metavar="MODES")  # fmt: skip
    dtype: str | None = option("bfloat16 (default on CUDA), float16, float32 (default on a CPU), tf32",
                               metavar="DTYPES")  # fmt: skip
    compile: str = option("comma-separated: no, yes (torch.compile), reduce-overhead, both, all; by default no",
                          default="no", metavar="WAYS")  # fmt: skip
    device: str | None = option("cuda or cpu; by default cuda if available", metavar="NAME")
    budget: int = option("milliseconds per candidate after warm-up; by default 150", default=150, metavar="MS")
    jobs: int = option("processes that compile ahead of the run; by default 1", default=1, metavar="N")
    out: str = option("folder for the results; by default results", default="results", metavar="FOLDER")
    force: bool = option("replace results of the same name instead of numbering them", default=False)
    add: bool = option("add to results of the same name if machine, commit and versions are the same", default=False)
    plot: bool = option("draw time, throughput and memory against size, as PNG next to the results", default=False)
    json: bool = option("print the results as JSON", default=False)


def run(options: Options) -> int:
    """Measure and print; the files are the last line."""
    from sightline.bench import benchmark

    try:
        given = {name: value for name, value in vars(options).items() if name != "json"}
        report = benchmark(**given, progress=Progress)
    except KeyboardInterrupt as stop:
        if stop.args:
            say(f"sightline: measured so far: {' and '.join(map(str, stop.args))}", file=sys.stderr)
        raise
    if options.json:
        sys.stdout.write(report.to_json())
    else:
        _print(report)
    failures = report.failures()
    for line in failures:
        say(f"sightline: {line}", file=sys.stderr)
    say(f"wrote {', '.join(map(str, report.files))}", file=sys.stderr if options.json else sys.stdout)
    return 1 if failures else 0


def _print(report: "Report") -> None:
    from sightline.bench import tables

    make = tables.plain_tables if report.about.get("preset") == "plain" else tables.row_tables
    for title, _, table in make(report.rows):
        _show(title, table)
    if lines := [f"  {found}" for found in tables.crossovers(report.rows)]:
        say("", "Where linear overtakes SDPA:", *lines)
    if report.findings:
        _show("First calls, new sizes, batches", tables.finding_table(report.findings))
    for dtype, best in report.about.get("ceilings", {}).items():
        copy, product = best["copy"] / 1e12, best["product"] / 1e12
        say("", f"Ceilings, {dtype}: copy {copy:.3g} TB/s, matrix product {product:.3g} TFLOP/s")


def _show(title: str, table: "Table") -> None:
    say("", f"{title}")
    columns = [Column(name, i >= table.text, name in table.extra) for i, name in enumerate(table.titles)]
    show(columns, table.rows)


COMMAND = Command(
    Options,
    run,
    help="time and memory of operators and models, next to their baselines",
    examples=(
        "  sightline bench ops\n"
        "  sightline bench ops --mechanism linear --shape 8,6,32,64x64 --mode forward --device cpu\n"
        "  sightline bench models --model inline_pvt_tiny --img-size 224,512 --compile both --plot\n"
        "  sightline bench models --model inline_deit_tiny --attention focused --attention performer\n"
        "  sightline bench models --model inline_swin_tiny --window 7,14,28,56 --mode forward --plot\n"
        "  sightline bench --preset goals --jobs 8\n"
        "  sightline bench --preset plain --only latency,host --jobs 8\n"
        "  sightline bench ops --preset soft"
    ),
    aliases={"--rivals": "--baselines"},
)
