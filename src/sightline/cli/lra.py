"""`sightline lra`: one task of the Long Range Arena with several mechanisms, next to what was published."""

import json
import re
import sys
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.cli.options import Command, option, positional
from sightline.cli.output import Column, bar, check_writable, show
from sightline.util.errors import InputError
from sightline.util.names import nearest

if TYPE_CHECKING:
    from sightline.tasks.sequences.config import Config

Row = dict[str, Any]  # JSON
COLUMNS = (
    Column("attention"), Column("parameters", right=True, wide=True), Column("updates", right=True),
    Column("val %", right=True), Column("test %", right=True), Column("published %", right=True),
    Column("examples/s", right=True), Column("memory GiB", right=True, wide=True),
)  # fmt: skip
OWN = {  # keys that have an option of this command
    "model.attention": "--attention", "run.folder": "--out", "data.path": "--data", "data.name": "TASK",
    "model.name": "TASK",
}  # fmt: skip
MOST = 10**9  # updates of a run


@dataclass(frozen=True)
class Options:
    """Train a model of the Long Range Arena with one mechanism after the other, test each, and print the table.

    The model and its training are those of the recipe lra_TASK. Runs that are complete are not repeated, one that was
    interrupted resumes: give the same command again. Validation chooses the weights that are tested.
    """

    task: str = positional("listops, text, retrieval, image or pathfinder")
    attention: tuple[str, ...] = option(
        "mechanism, with options in brackets; may be repeated; by default softmax, linear, inline, soft, soft_norm and "
        "nystromformer", default=(), metavar="NAME",
    )  # fmt: skip
    data: str | None = option("folder with the files as published; listops and pathfinder do without", metavar="PATH")
    out: str | None = option("folder for the runs and results.json; by default runs/lra/TASK", metavar="FOLDER")
    steps: int | None = option("updates in all, the schedule compressed to them; by default as published", metavar="N")
    set: tuple[str, ...] = option(
        "a key of the configuration, as in batch.size=64; may be repeated", default=(), metavar="KEY=VALUE"
    )
    json: bool = option("print JSON", default=False)


def run(options: Options) -> None:
    """Train and test one mechanism after the other."""
    from sightline.layers.spec import Spec
    from sightline.tasks.sequences.arena import DEFAULT_MECHANISMS, RESULTS, check_runs, keep_row, read_rows
    from sightline.tasks.sequences.published import TASKS

    if options.task not in TASKS:
        remedy = nearest(options.task, TASKS, f"give one of {', '.join(TASKS)}")
        raise InputError(f"no task {options.task!r}; {remedy}")
    names = list(dict.fromkeys(str(Spec.parse(text)) for text in options.attention or DEFAULT_MECHANISMS))
    folder = Path(f"runs/lra/{options.task}" if options.out is None else options.out)
    configs = {name: configure(options, name, folder) for name in names}
    check_writable(folder if options.out is None else options.out, "--out")
    read_rows(folder / RESULTS, options.task)
    check_runs(list(configs.values()))
    rows = []
    for name, config in configs.items():
        with redirect_stdout(sys.stderr) if options.json else nullcontext():
            rows.append(measure(name, config, folder / _slug(name)))
        keep_row(folder, folder / _slug(name), options.task, rows[-1])
    if options.json:
        print(json.dumps({"task": options.task, "rows": rows}, indent=2))
        return
    show(COLUMNS, [*(_cells(row, options.task) for row in rows), *_others(options.task, rows)])
    print(f"wrote {folder / RESULTS}; every run has a folder next to it")


def configure(options: Options, name: str, folder: Path) -> "Config":
    """The configuration of one run."""
    from sightline.engine.settings import load_recipe, resolve

    recipe = load_recipe(f"lra_{options.task}")
    settings: dict[str, str] = {}
    for text in options.set:
        key, equals, value = text.partition("=")
        if not equals or "." not in key:
            raise InputError(f"--set: {text!r} is not KEY=VALUE; write, for example, batch.size=64")
        if key.strip() in OWN:
            raise InputError(f"--set: {key.strip()} follows from {OWN[key.strip()]}; give that instead")
        settings[key.strip()] = value
    settings |= {"model.attention": json.dumps(name), "run.folder": json.dumps(str(folder / _slug(name)))}
    if options.data is not None:
        settings["data.path"] = json.dumps(options.data)
    if options.steps is not None:
        if not 1 <= options.steps <= MOST:
            raise InputError(f"--steps: {options.steps} is not a number of updates; give 1 to {MOST:,}")
        schedule = resolve(recipe, settings).schedule
        most = min(schedule.epochs, options.steps)
        epochs = next(count for count in range(most, 0, -1) if options.steps % count == 0)
        settings |= {"schedule.epochs": str(epochs), "data.epoch_steps": str(options.steps // epochs)}
        settings["schedule.warmup_epochs"] = str(schedule.warmup_epochs * epochs / schedule.epochs)
    return resolve(recipe, settings)


def _slug(name: str) -> str:
    """The folder of a mechanism."""
    return re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")


def measure(name: str, config: "Config", folder: Path) -> Row:
    """Train if the run is not complete, test, and return a row: accuracy, speed, memory."""
    import torch

    from sightline.engine.evaluate import evaluate
    from sightline.engine.run_folder import DONE, differences
    from sightline.engine.train import train
    from sightline.hub import load
    from sightline.tasks.sequences.arena import median_rate, published_as, read_json

    memory = folder / "memory.json"
    if (folder / DONE).is_file():
        if different := differences(folder, config):
            raise InputError(f"{folder}: a run with another {', '.join(different[:4])}; give another --out")
    else:
        on_gpu = torch.cuda.is_available() and config.run.device != "cpu"
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        train(config)
        peak = torch.cuda.max_memory_allocated() if on_gpu else None
        memory.write_text(json.dumps({"bytes": peak}) + "\n", encoding="utf-8")
    done, rate = read_json(folder / DONE), median_rate(folder / "metrics.jsonl")
    if not all(isinstance(done.get(key), int | float) for key in ("step", "top1", "seconds")):
        raise InputError(f"{folder / DONE} is damaged; remove the folder of the run to train again")
    loaded = load(str(folder / "checkpoints" / "best" / "model.safetensors"))
    scores = evaluate(
        loaded, split="test", batch_size=config.batch.eval_size or config.batch.size, device=config.run.device,
        precision=config.run.precision, progress=bar,
    )  # fmt: skip
    versions, peak = read_json(folder / "versions.json"), read_json(memory).get("bytes")
    if not isinstance(peak, int | None):
        raise InputError(f"{memory} is damaged; remove it and give the command again")
    return {
        "attention": name, "published_as": published_as(name), "parameters": loaded.parameters, "steps": done["step"],
        "batch": config.batch.size, "lr": config.optim.lr, "seed": config.run.seed, "val": round(done["top1"], 4),
        "test": round(scores["top1"], 4), "examples": scores.images,
        "examples_per_second": rate, "peak_bytes": peak,
        "seconds": round(done["seconds"], 1), "precision": config.run.precision,
        **{key: versions.get(key) for key in ("device", "torch", "commit")},
    }  # fmt: skip


def _cells(row: Row, task: str) -> list[str]:
    from sightline.tasks.sequences.published import PUBLISHED

    known = "" if row["published_as"] is None else f"{PUBLISHED[row['published_as']][task]:.1f}"
    memory = "-" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 2**30:.2f}"
    numbers = [f"{row['val']:.2f}", f"{row['test']:.2f}"]
    rate = f"{row['examples_per_second']:,.0f}"
    return [row["attention"], f"{row['parameters']:,}", f"{row['steps']:,}", *numbers, known, rate, memory]


def _others(task: str, rows: list[Row]) -> list[list[str]]:
    """The published rows of mechanisms that were not run."""
    from sightline.tasks.sequences.published import PUBLISHED

    shown = {row["published_as"] for row in rows}
    return [
        [name, "", "", "", "", f"{scores[task]:.1f}", "", ""] for name, scores in PUBLISHED.items() if name not in shown
    ]


COMMAND = Command(
    Options,
    run,
    help="a task of the Long Range Arena with several mechanisms",
    examples=(
        "  sightline lra listops\n"
        "  sightline lra listops --attention softmax --attention inline --steps 1000\n"
        "  sightline lra image --data cifar-10-batches-bin --attention 'nystromformer(landmarks=128)'\n"
        "  sightline lra pathfinder --attention inline --set data.train=20000 --set run.seed=1"
    ),
)
