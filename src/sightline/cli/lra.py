"""`sightline lra`: one task of the Long Range Arena with several mechanisms, next to what was published."""

import sys
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from sightline.cli.options import Command, option, positional
from sightline.cli.output import Column, bar, number, print_json, show
from sightline.tasks.sequences.config import TaskName
from sightline.util.files import check_writable
from sightline.util.names import rate_cell
from sightline.util.schema import Count
from sightline.util.text import say

Row = dict[str, Any]  # JSON
COLUMNS = (
    Column("attention"), number("parameters", wide=True), number("updates"), number("val %"), number("test %"),
    number("published %"), number("examples/s"), number("memory GiB", wide=True),
)  # fmt: skip


@dataclass(frozen=True)
class Options:
    """Train a model of the Long Range Arena with several mechanisms, test each, and print a table with published rows.

    The model and its training are those of the recipe lra_TASK. Runs that are complete are not repeated;
    an interrupted one resumes when the same command is given again. The weights with the best validation accuracy are
    tested.
    """

    task: TaskName = positional("listops, text, retrieval, image or pathfinder")
    attention: tuple[str, ...] = option(
        "mechanism, with options in brackets; can be repeated; by default softmax, linear, inline, soft, soft_norm and "
        "nystromformer", default=(), metavar="NAME",
    )  # fmt: skip
    data: str | None = option(
        "folder with the files as published; not needed for listops and pathfinder", metavar="PATH"
    )
    out: str | None = option("folder for the runs and results.json; by default runs/lra/TASK", metavar="FOLDER")
    steps: Annotated[Count, Field(le=10**9)] | None = option(
        "number of updates, with the schedule scaled to it; by default as published", metavar="N"
    )
    set: tuple[str, ...] = option(
        "a key of the configuration, as in batch.size=64; can be repeated", default=(), metavar="KEY=VALUE"
    )
    json: bool = option("print JSON", default=False)


def run(options: Options) -> None:
    """Train and test each mechanism, and print the table."""
    from sightline.engine.arena import configure, train_and_test
    from sightline.layers.spec import Spec
    from sightline.tasks.sequences import arena

    names = list(dict.fromkeys(str(Spec.parse(text)) for text in options.attention or arena.DEFAULT_MECHANISMS))
    folder = Path(f"runs/lra/{options.task}" if options.out is None else options.out)
    configs = {
        name: configure(
            options.task, name, arena.run_folder(folder, name), data=options.data, steps=options.steps,
            changes=options.set,
        )
        for name in names
    }  # fmt: skip
    check_writable(folder if options.out is None else options.out, "--out")
    arena.check_runs(folder, options.task, list(configs.values()))
    rows = []
    for name, config in configs.items():
        with redirect_stdout(sys.stderr) if options.json else nullcontext():
            found = train_and_test(config, bar)
        rows.append({"attention": name, "published_as": arena.TITLES.get(name.partition("(")[0]), **found})
        arena.keep_row(folder, options.task, rows[-1])
    if options.json:
        print_json({"task": options.task, "rows": rows})
        return
    published = {name: f"{scores[options.task]:.1f}" for name, scores in arena.PUBLISHED.items()}
    not_run = [name for name in published if name not in {row["published_as"] for row in rows}]
    cells = [_cells(row, published.get(row["published_as"], "")) for row in rows]
    show(COLUMNS, [*cells, *([name, "", "", "", "", published[name], "", ""] for name in not_run)])
    say(f"wrote {folder / arena.RESULTS}; every run has a folder next to it")


def _cells(row: Row, published: str) -> list[str]:
    memory = "-" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 2**30:.2f}"
    numbers = [f"{row['val']:.2f}", f"{row['test']:.2f}"]
    rate = rate_cell(row["examples_per_second"])
    return [row["attention"], f"{row['parameters']:,}", f"{row['steps']:,}", *numbers, published, rate, memory]


COMMAND = Command(
    Options,
    run,
    help="compare mechanisms on a task of the Long Range Arena",
    keys={"data.path": "--data"},
    examples=(
        "  sightline lra listops\n"
        "  sightline lra listops --attention softmax --attention inline --steps 1000\n"
        "  sightline lra image --data cifar-10-batches-bin --attention 'nystromformer(landmarks=128)'\n"
        "  sightline lra pathfinder --attention inline --set data.train=20000 --set run.seed=1"
    ),
)
