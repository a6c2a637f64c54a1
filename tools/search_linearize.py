"""Settings of `sightline linearize`, compared by short runs side by side on one GPU.

    python tools/search_linearize.py vit_tiny_patch16_224 --checkpoint W --data natural.zip --eval imagenet_dev \
        --out runs/search --jobs 4 --epochs 8 --budget 540

Round 1 changes one setting at a time; round 2 puts together what helped. Settings are chosen by the divergence from the
teacher on images that are held out of --data. The labeled images of --eval choose nothing: the best runs are reported
on them at the end. `OUT/search.json` has all rows; a run that is complete is not repeated. --trials FILE has the
trials, in YAML: names with the keys that they change.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from measuring import write
from pydantic import TypeAdapter
from side_by_side import finish

from sightline.engine.evaluate import evaluate
from sightline.engine.records import DONE, read_rows
from sightline.engine.settings import configure, load_recipe, parse_changes
from sightline.engine.train import train
from sightline.models.attention_error import block_errors
from sightline.util.documents import check, read_yaml
from sightline.util.errors import InputError

Changes = Mapping[str, object]
STAGE1 = "stage1:"  # before the keys of the first stage; `linearize.attention` is of both
ATTENTION = "linearize.attention"
TRIALS = Path(__file__).with_name("linearize_trials.yaml")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("teacher")
    parser.add_argument("--checkpoint", help="weights of the teacher; by default the published ones")
    parser.add_argument("--data", action="append", required=True, help="images; can be repeated")
    parser.add_argument("--eval", help="labeled images that the best runs are reported on")
    parser.add_argument("--out", type=Path, default=Path("runs/search"))
    parser.add_argument("--jobs", type=int, default=4, help="processes side by side")
    parser.add_argument("--epochs", type=int, default=8, help="of the second stage")
    parser.add_argument("--stage1-epochs", type=int, default=3)
    parser.add_argument("--budget", type=float, default=600.0, help="seconds after which no trial begins")
    parser.add_argument("--trials", type=Path, default=TRIALS, help="YAML file with the trials")
    parser.add_argument("--only", help="names of trials, with commas between them")
    parser.add_argument("--report", type=int, default=3, help="runs to report on --eval")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of all runs")
    parser.add_argument("--results", help="JSON file for the rows with versions and command")
    options = parser.parse_args(arguments)
    trials = read_trials(options.trials, options.only)
    common: dict[str, object] = {
        "model.name": options.teacher, "model.checkpoint": options.checkpoint,
        "model.pretrained": options.checkpoint is None, "data.images": tuple(options.data), "data.hold_out": 2000,
        "run.tensorboard": False, "run.report": False, "run.save_minutes": None, "run.save_every": 10**6,
        "run.eval_every": 10**6, "schedule.warmup_epochs": 1, **parse_changes(options.set, "set", {}),
    }  # fmt: skip
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(max(1, (os.cpu_count() or 1) // options.jobs)))
    search = Search(options.out, common, options.epochs, options.stage1_epochs, time.monotonic() + options.budget)
    one = options.jobs == 1  # here: a new process would have to decode and to compile again
    with nullcontext() if one else ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        search.run(pool, trials)
        search.run(pool, combined(search.rows, trials))
        best = [row for row in search.ranked() if "error" not in row][: options.report if options.eval else 0]
        apply = pool.map if pool else map
        for row, top1 in zip(best, apply(accuracy, [(r["folder"], options.eval) for r in best]), strict=True):
            row |= top1
    search.write()
    good = [{key: row[key] for key in row if key != "folder"} for row in search.ranked() if "error" not in row]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    write(options.results, __file__, good, device, epochs=options.epochs, stage1_epochs=options.stage1_epochs)
    for row in search.ranked():
        print(line(row))
    return 0


def read_trials(path: Path, only: str | None) -> dict[str, Changes]:
    """The trials of a file, or those whose names are in `only`."""
    trials = check(TypeAdapter(dict[str, dict[str, Any]]), read_yaml(path), path)
    names = list(trials) if only is None else only.split(",")
    unknown = next((name for name in names if name not in trials), None)
    if unknown is not None:
        raise InputError(f"--only: no trial {unknown!r} in {path}; it has {', '.join(trials)}")
    return {name: trials[name] for name in names}


class Search:
    """Runs trials and keeps their rows.

    Args:
        out: folder of the runs.
        common: keys of all of them.
        epochs, first: of the second and the first stage.
        end: when no trial may begin any more.
    """

    def __init__(self, out: Path, common: Changes, epochs: int, first: int, end: float) -> None:
        self.out, self.common, self.epochs, self.first, self.end = out, common, epochs, first, end
        self.rows: dict[str, dict[str, Any]] = {}

    def run(self, pool: ProcessPoolExecutor | None, trials: Mapping[str, Changes]) -> None:
        """First the first stages, each kind once, then the second ones."""
        stages = {name: self.stage1(changes) for name, changes in trials.items()}
        kinds = {str(values["run.folder"]): values for values in stages.values()}
        for folder, row in self._submit(pool, "linearize_stage1", kinds):
            if "error" in row:
                print(f"{folder}: {row['error']}", flush=True)
        later = {
            name: {
                **self.common, "schedule.epochs": self.epochs,
                "linearize.start": stages[name]["run.folder"],
                **{key: value for key, value in changes.items() if not key.startswith(STAGE1)},
                "run.folder": str(self.out / name.replace(" ", "_")),
            }
            for name, changes in trials.items()
        }  # fmt: skip
        for name, row in self._submit(pool, "linearize", later):
            self.rows[name] = {"trial": name, "changes": dict(trials[name]), **row}
            self.write()
            print(line(self.rows[name]), flush=True)

    def stage1(self, changes: Changes) -> dict[str, object]:
        """The keys of the first stage of a trial; trials that do not change it have the same folder."""
        own = {key.removeprefix(STAGE1): value for key, value in changes.items() if key.startswith(STAGE1)}
        own |= {key: value for key, value in changes.items() if key == ATTENTION}
        kind = hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()[:8] if own else "usual"
        return {**self.common, "schedule.epochs": self.first, **own, "run.folder": str(self.out / f"stage1-{kind}")}

    def _submit(self, pool: ProcessPoolExecutor | None, recipe: str, runs: Mapping[str, Changes]) -> Any:
        """Names with their rows, in the order in which they end."""
        if pool is None:
            for name, values in runs.items():
                yield name, run_one(recipe, values, self.end - time.monotonic() + time.time())
            return
        tasks: dict[Future[dict[str, Any]], str] = {
            pool.submit(run_one, recipe, values, self.end - time.monotonic() + time.time()): name
            for name, values in runs.items()
        }
        for task in as_completed(tasks):
            yield tasks[task], task.result()

    def ranked(self) -> list[dict[str, Any]]:
        return sorted(self.rows.values(), key=lambda row: row.get("divergence", float("inf")))

    def write(self) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"common": dict(self.common), "rows": self.ranked()}, indent=1, default=list)
        (self.out / "search.json").write_text(text + "\n", encoding="utf-8")


def run_one(recipe: str, values: Changes, end: float) -> dict[str, Any]:
    """Train, unless it is done or too late: how far it is from the teacher on held-out images, and seconds."""
    folder, start = Path(str(values["run.folder"])), time.time()
    try:
        if not (folder / DONE).is_file():
            if start > end:
                return {"error": "no time left"}
            train(configure(load_recipe(recipe), values))
        row = read_rows(folder)[-1]
    except Exception as error:  # the others go on
        return {"error": f"{type(error).__name__}: {error}"[:200]}
    told = {"top1": row["top1"]} if "top1" in row else {}
    return {
        "divergence": row["divergence"], "agreement": row["agreement"], "errors": block_errors(row),
        "loss": row["train_loss"], "images_per_second": row["images_per_second"],
        "seconds": round(time.time() - start, 1), "folder": str(folder), **told,
    }  # fmt: skip


def combined(rows: Mapping[str, Mapping[str, Any]], trials: Mapping[str, Changes]) -> dict[str, Changes]:
    """The two, three and all changes that helped most, put together; of two values of a key the better one."""
    base = next((row["divergence"] for name, row in rows.items() if not trials[name] and "error" not in row), None)
    if base is None:
        return {}
    helped = [name for name, row in rows.items() if row.get("divergence", base) < base]
    helped.sort(key=lambda name: rows[name]["divergence"])
    made: dict[str, Changes] = {}
    for count in sorted({2, 3, len(helped)}):
        if 1 < count <= len(helped):
            changes: dict[str, object] = {}
            for name in helped[:count]:
                changes = {**trials[name], **changes}
            made[f"the best {count}"] = changes
    return made


def accuracy(run: Sequence[str], img_size: int | None = None, workers: int = 4) -> dict[str, float]:
    """Top-1 of a run, or of a file of weights, on labeled images, its standard error and their number."""
    scores = evaluate(run[0], run[1], img_size=img_size, workers=workers, batch_size=128)
    return with_error(scores["top1"], scores.images)


def with_error(top1: float, images: int) -> dict[str, float]:
    """An accuracy in percent, its standard error, and the number of images."""
    share = top1 / 100
    return {"top1": top1, "standard_error": 100 * (share * (1 - share) / images) ** 0.5, "images": images}


def line(row: Mapping[str, Any]) -> str:
    if "error" in row:
        return f"{row['trial']}: {row['error']}"
    reported = "standard_error" in row
    told = f", top-1 {row['top1']:.2f} ± {row['standard_error']:.2f} % of {row['images']}" if reported else ""
    figures = f"{row['divergence']:.4f}  {row['agreement']:6.2f} %"
    return f"{figures}  {row['trial']}{told}, {row['images_per_second']:,.0f} images/s"


if __name__ == "__main__":
    finish(main)
