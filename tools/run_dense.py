"""The runs behind docs/dense.md, side by side on one GPU: `python tools/run_dense.py FOLDER --seeds 3 --out FILE`.

FOLDER holds camvid and bccd, and coco_mini if it is asked for. Every recipe is trained with three backbones and with
their softmax twins from random weights, and with the model in the package from its own weights; the weights of the
best validation epoch are scored. coco_mini is memorized by one backbone and scored with the last weights.

    python tools/run_dense.py data --tasks camvid --seeds 3 --out dense.jsonl --results results/dense/runs-x.json
    python tools/run_dense.py data --backbones soft_norm_tiny --set schedule.epochs=50 --out dense.jsonl

Repeat a command to go on where it was stopped. Speed is that of a shared GPU.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from side_by_side import Job, Row, command_line, finish, run_jobs

from sightline.engine.evaluate import evaluate
from sightline.engine.records import DONE, VERSIONS, read_config, read_rows
from sightline.engine.settings import load_recipe, parse_changes
from sightline.engine.train import train
from sightline.util.errors import FileError

SPLITS = {"camvid": ("val", "test"), "bccd": ("val", "test"), "coco_mini": ("train2017", "val2017")}
MEMORIZED = "coco_mini"
BACKBONES = ("inline_swin_tiny", "soft_norm_tiny", "inline_vit_tiny")
PACKAGED = "inline_vit_tiny"  # comes with weights
SCORES = ("miou", "box_ap", "mask_ap")
QUIET = {"run.report": False, "run.tensorboard": False, "run.log_every": 10**6, "run.save_minutes": 1}
SMALL = {
    "run.device": "cpu", "run.precision": "no", "run.max_steps": 2, "batch.size": 2, "data.workers": 0,
    "run.threads": 1,
}  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    options = _options().parse_args(arguments)
    more = parse_changes(options.set, "set", {}) | (SMALL if options.rehearse else {})
    data = Path(options.data)
    missing = next((task for task in options.tasks if not (data / task).exists()), None)
    if missing:
        raise FileError(f"{data / missing}: no such folder; {data} should hold {', '.join(options.tasks)}")
    jobs = make_jobs(options.tasks, options.backbones, options.seeds, data, {**QUIET, **more})
    for job in jobs:
        job["limit"] = 2 if options.rehearse else None
    found = run_jobs(jobs, run_one, Path(options.out), Path(options.work), options.processes, options.minutes * 60, 1e9)
    rows = [row for job in found for row in job["rows"]]
    for row in rows:
        scores = ", ".join(f"{key} {row[key]:.2f}" for key in SCORES if key in row)
        print(f"{row['run']}, seed {row['seed']}, {row['split']}: {scores} after {row['steps']} updates")
    if options.results and rows:
        Path(options.results).parent.mkdir(parents=True, exist_ok=True)
        results = {"note": options.note, "command": command_line(), "rows": rows}
        Path(options.results).write_text(json.dumps(results, indent=1) + "\n")
    return 0 if len(found) == len(jobs) else 1


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="folder that holds those of the tasks")
    parser.add_argument("--tasks", nargs="+", choices=SPLITS, default=["camvid", "bccd"])
    parser.add_argument("--backbones", nargs="+", default=BACKBONES)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of all trainings")
    parser.add_argument("--processes", type=int, default=4, help="trainings at a time")
    parser.add_argument(
        "--minutes", type=float, default=9.0, help="for all of them; what is left resumes the next time"
    )
    parser.add_argument("--out", required=True, help="file with one line of JSON per training")
    parser.add_argument("--results", help="file for the tables of the documentation")
    parser.add_argument("--note", default="", help="what a reader of the results has to know")
    parser.add_argument("--work", default=str(Path(tempfile.gettempdir(), "run_dense")), help="folder for runs")
    parser.add_argument("--rehearse", action="store_true", help="two updates on a CPU")
    return parser


def make_jobs(tasks: list[str], backbones: list[str], seeds: int, data: Path, changes: dict[str, Any]) -> list[Job]:
    """All backbones and starts with the first seed, then with the next."""
    jobs: list[Job] = []
    for seed in range(seeds):
        for task in tasks:
            for backbone in backbones[:1] if task == MEMORIZED else backbones:
                starts: list[tuple[str, dict[str, Any]]] = [("", {"model.name": backbone})]
                if task != MEMORIZED:
                    starts.append((", softmax", {"model.name": backbone, "model.args": {"attention": "softmax"}}))
                    if backbone == PACKAGED:
                        starts.append((", pretrained", {"model.name": backbone, "model.pretrained": True}))
                for suffix, start in starts:
                    run = f"{task} {backbone}{suffix}"
                    jobs.append(
                        {"name": f"{run}, seed {seed}", "run": run, "recipe": task, "data": str(data / task),
                         "changes": {**changes, **start, "run.seed": seed}}
                    )  # fmt: skip
    return jobs


def run_one(job: Job, folder: Path) -> Row:
    """Train a model and score it on its splits: one row per split."""
    recipe = job["recipe"]
    if not (folder / DONE).is_file():
        train(recipe, data=job["data"], out=folder, **job["changes"])
    config, done = read_config(folder), json.loads((folder / DONE).read_text())
    made = json.loads((folder / VERSIONS).read_text())
    metric = next(key for key in SCORES if key in done)
    facts = {
        "run": job["run"], "recipe": recipe, "head": config["model"]["head"], "backbone": config["model"]["name"],
        "attention": config["model"]["args"].get("attention", "own"), "pretrained": config["model"]["pretrained"],
        "seed": config["run"]["seed"], "epochs": config["schedule"]["epochs"],
        "recipe_epochs": load_recipe(recipe)["schedule"]["epochs"], "best_epoch": done["epoch"], "steps": done["step"],
        "curve": [[line["epoch"], line[metric]] for line in read_rows(folder) if metric in line],
        "seconds": round(done["seconds"], 1), **{key: made[key] for key in ("device", "torch", "timm", "commit")},
    }  # fmt: skip
    weights = folder / "checkpoints" / "last" if recipe == MEMORIZED else folder
    rows = []
    for split in SPLITS[recipe]:
        scores = evaluate(
            weights, job["data"], split=split, batch_size=8, device=config["run"]["device"], limit=job["limit"],
            precision=config["run"]["precision"], workers=config["data"]["workers"],
        )  # fmt: skip
        found = {key: round(value, 4) for key, value in scores if key in SCORES}
        rows.append({**facts, "split": split, "from": "sightline eval", **found})
    return {"rows": rows, "top1": next(value for key, value in rows[-1].items() if key in SCORES)}


if __name__ == "__main__":
    finish(main)
