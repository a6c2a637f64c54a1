"""Speed of `sightline train` as documented: `python tools/measure_training.py IMAGENETTE --out results`.

Trains a recipe on Imagenette and again with softmax attention, without any other option than the number of epochs, one
run after the other, and takes images per second from the metrics of the runs: the median over the epochs after the
first, which compiles. All are started at the same time before, for a few updates, as compiling takes long and what is
compiled is kept. The rows are added to the results of `sightline bench --preset plain` in the same folder if
machine, commit and versions are the same.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path

import torch
from side_by_side import finish

from sightline.bench.results import FAILED, Report, Row, describe_run, file_stem, result_files
from sightline.engine.records import METRICS, read_rows
from sightline.engine.settings import load_recipe
from sightline.util.errors import InputError

PRECISIONS = {"bf16": "bfloat16", "fp16": "float16", "no": "float32", "fp32": "float32"}


def command_of(recipe: str, name: str, data: str, epochs: int, more: list[str]) -> list[str]:
    """The command of a run, without its folder."""
    words = ["train", "--config", recipe, "--data", data, "--schedule.epochs", str(epochs), *more]
    if name == "softmax":
        args = load_recipe(recipe)["model"].get("args", {})
        words += ["--model.args", json.dumps({**args, "attention": "softmax"})]
    return [sys.executable, "-m", "sightline", *words]


def compile_ahead(commands: list[list[str]]) -> None:
    """A few updates of all runs at the same time; what fails is told when it is measured."""
    with tempfile.TemporaryDirectory() as folder:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        runs = [
            subprocess.Popen([*command, "--run.max_steps", "5", "--run.folder", f"{folder}/{number}"], **quiet)
            for number, command in enumerate(commands)
        ]
        for run in runs:
            run.wait()


def measure(recipe: str, name: str, command: list[str], device: str) -> Row:
    """One run; a failure becomes the status of its row."""
    settings = load_recipe(recipe)
    dtype = PRECISIONS.get(settings.get("run", {}).get("precision", "no"), "float32")
    row = Row("run", recipe, name, "train", True, dtype, device, settings["batch"]["size"], compile_mode="auto")
    row.height = row.width = settings["data"]["size"]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([*command, "--run.folder", f"{folder}/run"], capture_output=True, text=True)
        lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        if done.returncode or not Path(folder, "run", METRICS).exists():
            row.status, row.note = FAILED, (lines or ["no message"])[-1][:200]
            return row
        rates = [line.get("images_per_second") for line in read_rows(Path(folder, "run"))]
    found = [rate for rate in rates[1:] or rates if isinstance(rate, int | float)]
    row.images_per_s, row.spread = statistics.median(found), (max(found) - min(found)) / statistics.median(found)
    row.note = next((line.strip()[:200] for line in lines if "compil" in line or "eager mode" in line), "")
    return row


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="Imagenette, as a folder")
    parser.add_argument("--recipe", action="append", help="by default imagenette and imagenette_deit")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--more", default="", help="further options of `sightline train`, for a trial")
    options = parser.parse_args(arguments)
    if not Path(options.data).is_dir():
        raise InputError(f"{options.data}: not a folder; give that of Imagenette, with train and val")
    recipes = options.recipe or ["imagenette", "imagenette_deit"]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    chosen = "".join(f" --recipe {recipe}" for recipe in options.recipe or ())
    line = f"python tools/measure_training.py IMAGENETTE{chosen} --epochs {options.epochs} {options.more}".strip()
    report = Report({"preset": "plain", **describe_run(line, device)})
    failed, more = False, options.more.split()
    commands = {
        key: command_of(*key, options.data, options.epochs, more) for key in product(recipes, ("inline", "softmax"))
    }
    compile_ahead(list(commands.values()))
    for (recipe, name), command in commands.items():
        row = measure(recipe, name, command, device.type)
        print(row.case, row.candidate, row.status, row.images_per_s, row.note, flush=True)
        failed |= row.status == FAILED
        keep(row, report, options.out)
    print(f"wrote {', '.join(map(str, report.files))}")
    return 1 if failed else 0


def keep(row: Row, report: Report, folder: Path) -> None:
    """Write a row as soon as it is measured, next to those of the same machine, commit and versions."""
    if not report.files:
        stem = file_stem("plain", [row.dtype], report.about)
        before = folder / f"{stem}.json"
        same = before.exists() and report.extend(before, [])
        report.files = result_files(folder, stem, replace=same)
    report.rows = [other for other in report.rows if _name(other) != _name(row)] + [row]
    report.write()


def _name(row: Row) -> tuple[str, ...]:
    return row.kind, row.case, row.mode, row.dtype, row.candidate


if __name__ == "__main__":
    finish(main)
