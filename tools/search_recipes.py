"""Search for a recipe, and measure the one that is chosen: `python tools/search_recipes.py IMAGENETTE --trials FILE`.

A trial is a recipe with changes. Trials are trained on four fifths of the training images and scored on the fifth, so
that nothing is chosen by the validation images; several run at a time on one GPU, with the images kept on it.

    python tools/search_recipes.py imagenette128.zip --trials tools/trials/photos.yaml --out search.jsonl
    python tools/search_recipes.py imagenette128.zip --final photos_80 photos --seeds 3 --out final.jsonl \
        --results results/training/photos-nvidia_h200.json

`--final` trains recipes on all training images and scores them on the validation images, averaged over seeds; `--whole`
does the same with trials, for an ablation, whose `--out` is the file of results. Repeat a command to go on where it was
stopped, if need be on another machine. `--rehearse` makes two updates on a few images on a CPU.
"""

import argparse
import gc
import hashlib
import json
import statistics
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from decoded import share_decoded
from pydantic import ConfigDict, TypeAdapter
from side_by_side import Job, Row, command_line, finish, run_jobs

from sightline.engine.records import read_rows as read_metrics
from sightline.engine.run_folder import versions
from sightline.engine.settings import load_recipe
from sightline.engine.train import train
from sightline.util.documents import check, read_yaml
from sightline.util.errors import FileError, InputError
from sightline.util.provenance import source_commit

HELD_OUT = 5  # one of so many training images scores a trial
QUIET = {
    "run.report": False, "run.tensorboard": False, "run.save_every": 10**6, "run.save_minutes": None,
    "run.log_every": 10**6, "run.eval_every": 10, "data.workers": 0,
}  # fmt: skip
SMALL = {
    "run.device": "cpu", "run.precision": "no", "run.max_steps": 2, "data.limit": 7, "data.workers": 0, "data.size": 64,
    "batch.size": 32, "run.threads": 1,
}  # fmt: skip


@dataclass
class Trials:
    """A file of trials: the recipe, the keys that each trial changes, and those that all of them do."""

    base: str
    trials: dict[str, dict[str, Any] | None]
    changes: dict[str, Any] = field(default_factory=dict)

    __pydantic_config__ = ConfigDict(extra="forbid")


def main(arguments: list[str] | None = None) -> int:
    options = _options().parse_args(arguments)
    work = Path(options.work)
    data = unpack(Path(options.data), work)
    if options.final:
        jobs = [
            {"name": f"{recipe}, seed {seed}", "recipe": recipe, "changes": {"run.seed": seed}, "data": str(data)}
            for recipe in options.final
            for seed in range(options.seeds)
        ]
    else:
        jobs = read_trials(
            options.trials, options.seeds, str(data if options.whole else hold_out(data, work / "search"))
        )
    for job in jobs:
        job["changes"] = {**QUIET, **job["changes"]} | (SMALL if options.rehearse else {})
        job["settings"] = load_recipe(job["recipe"])  # a recipe that was changed since is another job
        job |= {"cache": str(work / "decoded"), "images": "all" if options.final or options.whole else "split",
                "dataset": data.absolute().name}  # fmt: skip
    limits = (options.processes, options.minutes * 60, options.job_minutes * 60)
    rows = run_jobs(jobs, train_one, Path(options.out), work / "runs", *limits)
    show(rows)
    if options.results and rows:
        write_results(Path(options.results), rows)
    return 0 if len(rows) == len(jobs) else 1


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="Imagenette, as a folder or as a zip file with one")
    parser.add_argument(
        "--trials", help="YAML file: a `base` recipe and `trials`, names with the keys that they change"
    )
    parser.add_argument(
        "--whole", action="store_true", help="trials as --final does it: for an ablation, which chooses none"
    )
    parser.add_argument("--final", nargs="+", help="recipes to measure")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--processes", type=int, default=8, help="trainings at a time")
    parser.add_argument(
        "--minutes", type=float, default=9.0, help="for all of them; what is left resumes the next time"
    )
    parser.add_argument("--job-minutes", type=float, default=8.0, help="for one of them")
    parser.add_argument("--out", required=True, help="file with one line of JSON per training")
    parser.add_argument("--results", help="file of results to write, with versions and command")
    parser.add_argument("--work", default=str(Path(tempfile.gettempdir(), "search_recipes")), help="folder for runs")
    parser.add_argument("--rehearse", action="store_true", help="two updates on a CPU")
    return parser


def unpack(data: Path, work: Path) -> Path:
    """The folder with train and val, from a zip file if it is one."""
    target = data if data.is_dir() else work / data.stem
    if not target.exists():
        with whole(target) as folder:
            try:
                with zipfile.ZipFile(data) as file:
                    file.extractall(folder)
            except zipfile.BadZipFile as error:
                raise FileError(f"{data}: not a zip file, or damaged ({error})") from error
    if (target / "train").is_dir():
        return target
    found = next((path.parent for path in sorted(target.glob("*/train")) if path.is_dir()), None)
    if found is None:
        raise FileError(f"{data}: no folder train in it")
    return found


def hold_out(data: Path, target: Path) -> Path:
    """A folder of links to the training images of `data`: `train` has four fifths of them, `val` the others."""
    if target.exists():
        return target
    with whole(target) as folder:
        for path in sorted((data / "train").rglob("*")):
            if path.is_file():
                chosen = int(hashlib.sha256(path.name.encode()).hexdigest(), 16) % HELD_OUT == 0
                link = folder / ("val" if chosen else "train") / path.relative_to(data / "train")
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(path.resolve())
    return target


@contextmanager
def whole(target: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `target` at the end; a killed command leaves no half of it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder, target.name)
        made.mkdir()
        yield made
        made.rename(target)


def read_trials(path: str | None, seeds: int, data: str) -> list[Job]:
    """The trials of a file, each with every seed."""
    if path is None:
        raise InputError("give --trials FILE or --final RECIPE")
    given = check(TypeAdapter(Trials), read_yaml(path), path)
    return [
        {"name": name, "recipe": given.base, "data": data,
         "changes": {**given.changes, **(changes or {}), "run.seed": seed}}
        for seed in range(seeds)
        for name, changes in given.trials.items()
    ]  # fmt: skip


def train_one(job: Job, folder: Path) -> Row:
    """One training, with the images decoded once for all of them."""
    share_decoded(Path(job["cache"]))
    gc.collect()  # what is left of the training before
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    done = train(job["recipe"], data=job["data"], out=folder, **job["changes"])
    lines = read_metrics(folder)
    rates = [line["images_per_second"] for line in lines[1:] or lines]
    return {
        "top1": lines[-1]["top1"],
        "val_loss": lines[-1]["val_loss"],
        "best": done.best,
        "curve": [[line["epoch"], line["top1"], line["train_loss"]] for line in lines if "top1" in line],
        "images_per_second": statistics.median(rates),
        "memory_mib": torch.cuda.max_memory_allocated() >> 20 if torch.cuda.is_available() else None,
        "versions": provenance(),
        "commit": source_commit()[0],
    }


def provenance() -> dict[str, Any]:
    """Versions, machine and command."""
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {**versions(name), "command": command_line()}


def show(rows: list[Row]) -> None:
    """The trials from the best on, averaged over their seeds."""
    for mean, spread, name, group in _means(rows):
        rate = statistics.median(row["images_per_second"] for row in group)
        loss = statistics.mean(row["val_loss"] for row in group)
        seconds = statistics.median(row["seconds"] for row in group)
        cost = f"{seconds:5.0f} s  {rate:7.0f} images/s"
        print(f"{mean:6.2f} +- {spread:.2f} ({len(group)})  loss {loss:.4f}  {cost}  {name}")


def _means(rows: list[Row]) -> list[tuple[float, float, str, list[Row]]]:
    """Mean, deviation and name of every trial, the best first."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["name"].rpartition(", seed ")[0] or row["name"], []).append(row)
    scores = {name: [row["top1"] for row in group] for name, group in groups.items()}
    return sorted(
        ((statistics.mean(scores[name]), statistics.stdev(scores[name]) if len(group) > 1 else 0.0, name, group)
         for name, group in groups.items()),
        key=lambda entry: -entry[0],
    )  # fmt: skip


def write_results(path: Path, rows: list[Row]) -> None:
    """What was measured, with versions, machine and command."""
    rows = [{key: value for key, value in row.items() if key not in ("key", "memory_mib", "versions")} for row in rows]
    for row in rows:
        row["job"] = {key: row["job"][key] for key in ("recipe", "changes")}
    means = [{"name": name, "mean": round(mean, 3), "deviation": round(spread, 3), "seeds": len(group)}
             for mean, spread, name, group in _means(rows)]  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"versions": provenance(), "means": means, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    finish(main)
