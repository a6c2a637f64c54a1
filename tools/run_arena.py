"""Tasks of the Long Range Arena with several mechanisms and seeds, side by side on one GPU.

    python tools/run_arena.py listops --attention softmax --attention inline --seeds 3 --out arena.jsonl
    python tools/run_arena.py pathfinder --processes 6 --out arena.jsonl --results results/sequences/pathfinder-x.json

Every run is that of `sightline lra`, which runs one after the other. Repeat a command to go on where it was stopped.
`--set KEY=VALUE` and `--steps` are those of `sightline lra`. Speed is that of a shared GPU.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from side_by_side import Job, Row, finish, run_jobs

from sightline.engine.arena import configure, train_and_test
from sightline.layers.spec import Spec
from sightline.tasks.sequences.arena import DEFAULT_MECHANISMS, TITLES
from sightline.tasks.sequences.data import ProgressPrinter, open_levels, open_splits

QUIET = (
    "run.report=false",
    "run.tensorboard=false",
    "run.log_every=1000000",
    "run.save_minutes=1",
    "run.save_every=1000000",
)
REHEARSAL = ("run.device=cpu", "run.precision=no", "data.train=64", "data.val=8", "data.test=8", "batch.size=8",
             "run.threads=1")  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    options = _options().parse_args(arguments)
    changes = [*QUIET, *options.set, *(REHEARSAL if options.rehearse else ())]
    steps = 2 if options.rehearse else options.steps
    jobs: list[Job] = [
        {"name": f"{options.task} {Spec.parse(attention)}, seed {seed}", "task": options.task, "attention": attention,
         "data": options.data, "dataset": options.data and Path(options.data).absolute().name, "steps": steps,
         "changes": [*changes, f"run.seed={seed}"]}
        for seed in range(options.seeds)
        for attention in options.attention or DEFAULT_MECHANISMS
    ]  # fmt: skip
    generate(jobs[0], Path(options.work))
    rows = run_jobs(jobs, run_one, Path(options.out), Path(options.work), options.processes, options.minutes * 60, 1e9)
    show(rows)
    if options.results and rows:
        Path(options.results).parent.mkdir(parents=True, exist_ok=True)
        Path(options.results).write_text(json.dumps({"task": options.task, "rows": table(rows)}, indent=1) + "\n")
    return 0 if len(rows) == len(jobs) else 1


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=("listops", "text", "retrieval", "image", "pathfinder"))
    parser.add_argument("--attention", action="append", help="by default the six of `sightline lra`")
    parser.add_argument("--data", help="folder with the files as published")
    parser.add_argument("--steps", type=int, help="updates, with the schedule scaled to them")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--processes", type=int, default=6, help="trainings at a time")
    parser.add_argument(
        "--minutes", type=float, default=9.0, help="for all of them; what is left resumes the next time"
    )
    parser.add_argument("--out", required=True, help="file with one line of JSON per training")
    parser.add_argument("--results", help="file for the tables of the documentation")
    parser.add_argument("--work", default=str(Path(tempfile.gettempdir(), "run_arena")), help="folder for runs")
    parser.add_argument("--rehearse", action="store_true", help="two updates on a CPU")
    return parser


def _config(job: Job, folder: Path):  # type: ignore[no-untyped-def]  # the configuration of any task
    return configure(
        job["task"], job["attention"], folder, data=job["data"], steps=job["steps"], changes=job["changes"]
    )


def generate(job: Job, folder: Path) -> None:
    """Generate the data before the processes start, which then read it from the cache."""
    data = _config(job, folder / "unused").data
    splits = open_splits(data, ProgressPrinter(), ("train",))
    open_levels(data, ProgressPrinter(), splits["train"])


def run_one(job: Job, folder: Path) -> Row:
    """Train and test one model."""
    found = train_and_test(_config(job, folder))
    name = str(Spec.parse(job["attention"]))
    return {"attention": name, "published_as": TITLES.get(name.partition("(")[0]), **found, "top1": found["test"]}


def table(rows: list[Row]) -> list[Row]:
    """The rows as the tables of the documentation take them, without what is ours."""
    return [{key: value for key, value in row.items() if key not in ("key", "name", "job", "top1")} for row in rows]


def show(rows: list[Row]) -> None:
    """Mean and range over the seeds."""
    for name in dict.fromkeys(row["attention"] for row in rows):
        tests = [row["test"] for row in rows if row["attention"] == name]
        print(f"{statistics.mean(tests):6.2f} % ({min(tests):.2f} to {max(tests):.2f}, {len(tests)})  {name}")


if __name__ == "__main__":
    finish(main)
