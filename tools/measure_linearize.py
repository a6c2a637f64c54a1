"""What linear students of a softmax model are good for. Five parts, each with a file in results/linearize:

    python tools/measure_linearize.py students vit_tiny_patch16_224 --checkpoint W --data natural.zip \
        --eval imagenet_dev --stage1-epochs 1 --epochs 4 --out results/linearize/students-nvidia_h200.json
    python tools/measure_linearize.py speed vit_tiny_patch16_224 --student runs/box \
        --out results/linearize/speed-nvidia_h200.json
    python tools/measure_linearize.py ladder vit_tiny_patch16_224 --checkpoint W --data natural.zip \
        --eval imagenet_dev --jobs 4 --epochs 8 --out results/linearize/ladder-nvidia_h200.json
    python tools/measure_linearize.py resolution vit_tiny_patch16_224 --checkpoint W --student runs/box \
        --data natural.zip --eval imagenet_dev --out results/linearize/resolution-nvidia_h200.json
    python tools/measure_linearize.py finetune vit_tiny_patch16_224 --checkpoint W --student runs/box \
        --camvid camvid --imagenette imagenette128 --jobs 6 --out results/linearize/finetune-nvidia_h200.json

students: one run of `sightline linearize` as a user starts it, and how long it takes; every call adds one. speed:
compiled teacher and student, by plain calls. ladder: mechanisms and numbers of softmax blocks; the first stage is
shared by the students of a mechanism, and students that the file has are not trained again. resolution: accuracy and
speed of teacher and student at sizes that were not trained, and their accuracy after a short training there, in which
they learn what the teacher says at its own size; what the file has is not repeated. finetune: the same recipe from the
student, from random weights and from the teacher. `--runs` keeps the runs; what is complete is not repeated.
"""

import argparse
import itertools
import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import timm
import torch
from decoded import share_decoded
from measuring import kept, measure, write
from search_linearize import ATTENTION, accuracy, run_one, with_error
from side_by_side import finish
from torch import nn
from torchvision.datasets import ImageFolder

import sightline
from sightline.data.labels import imagenet_classes
from sightline.engine.checkpoint import write_weights
from sightline.engine.settings import parse_changes
from sightline.engine.train import train
from sightline.models.base import VisionModel
from sightline.models.linearize import PLAIN, chosen_blocks, linearize
from sightline.models.weights.description import recorded_arguments
from sightline.tasks.linearize.config import Model
from sightline.tasks.linearize.model import read_teacher
from sightline.tasks.linearize.task import labelled
from sightline.tasks.preprocess import card_of
from sightline.tasks.replay import replayed
from sightline.util.files import jsonable
from sightline.util.provenance import source_commit

MECHANISMS = (PLAIN, "inline", "linear", "mala", "rala", "hedgehog", "ttt", "focused", "soft(landmarks=49)")
BLOCKS = (0, 1, 3, 6, 12)
SIZES = (224, 384, 512, 768)
SPEEDS = (224, 1024)
COMPILED = (224, 512, 1024)
STARTS = ("student", "random", "teacher")
TASKS = {"camvid": "camvid", "imagenette": "finetune"}  # with their recipes
KEYS = ("attention", "softmax", "epochs", "model", "size", "trained", "task", "start")  # tell rows of a file apart
Row = dict[str, Any]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("students", "speed", "ladder", "resolution", "finetune"))
    parser.add_argument("teacher")
    parser.add_argument("--checkpoint", help="weights of the teacher; by default the published ones")
    parser.add_argument("--student", help="run folder of the student")
    parser.add_argument("--data", action="append", default=[], help="images to train on; can be repeated")
    parser.add_argument("--eval", help="labeled images")
    parser.add_argument("--camvid")
    parser.add_argument("--imagenette")
    parser.add_argument("--attention", action="append", help="mechanisms of the ladder; by default nine")
    parser.add_argument("--keep", type=int, nargs="+", default=BLOCKS, help="softmax blocks of the ladder")
    parser.add_argument("--sizes", type=int, nargs="+", help="by default those of the documentation")
    parser.add_argument("--search", type=int, default=0, help="softmax blocks of a student, which are searched for")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--stage1-epochs", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=4, help="trainings side by side")
    parser.add_argument("--budget", type=float, default=3600.0, help="seconds after which no training begins")
    parser.add_argument("--batch", type=int, default=32, help="images of a timed pass")
    parser.add_argument("--compile", action="store_true", help="time compiled models, with CUDA graphs")
    parser.add_argument("--no-speed", action="store_true", help="leave out those of the ladder; a later call adds them")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--runs", type=Path, default=Path("runs/measure_linearize"))
    parser.add_argument("--out", help="JSON file; by default only printed")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of all trainings")
    options = parser.parse_args(arguments)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    parts = {"students": students, "speed": speed, "ladder": ladder, "resolution": resolution, "finetune": finetune}
    rows = {_key(row): row for row in kept(options.out)}
    if options.out:
        Path(options.out).parent.mkdir(parents=True, exist_ok=True)
    for row in parts[options.what](options, device):
        rows[_key(row)] = row
        print(row, flush=True)
        write(options.out, __file__, list(rows.values()), device, teacher=options.teacher)
    return 0


def _key(row: Row) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in KEYS)


def students(options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """One student by the command line, with the time that it takes from start to end."""
    folder = options.runs / f"student_{options.search}_{options.stage1_epochs}_{options.epochs}"
    command = [
        "linearize", options.teacher, *(["--checkpoint", options.checkpoint] if options.checkpoint else []),
        *(word for path in options.data for word in ("--data", path)), "--eval", options.eval, "--out", str(folder),
        *(["--search", str(options.search)] if options.search else []), "--no-speed",
        "--set", f"data.workers={options.workers}", "--set1", f"schedule.epochs={options.stage1_epochs}",
        "--set2", f"schedule.epochs={options.epochs}",
        "--set2", f"schedule.warmup_epochs={min(2, options.epochs // 4)}",
        *(word for change in options.set for word in ("--set", change)),
    ]  # fmt: skip
    begun = time.time()
    subprocess.run([sys.executable, "-m", "sightline", *command], check=True)
    seconds = time.time() - begun
    found = json.loads((folder / "linearize.json").read_text())
    images = len(ImageFolder(options.eval).samples)
    model: Any = sightline.load(folder).model
    mechanisms = [str(block.attn.mechanism) for block in model.blocks]
    yield {
        "attention": next(name for name in mechanisms if name != "softmax"), "softmax": options.search,
        "blocks": found["keep"], "stage1_epochs": options.stage1_epochs, "epochs": options.epochs,
        "agreement": found["scores"]["agreement"], **with_error(found["scores"]["top1"], images),
        "seconds": round(seconds, 1), "command": " ".join(["sightline", *command]),
    }  # fmt: skip


@torch.inference_mode()
def speed(options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """Teacher, as timm has it, and student, each under torch.compile and called as it is, in bfloat16 on a GPU."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    for size in options.sizes or COMPILED:
        images = torch.randn(options.batch, 3, size, size, device=device, dtype=dtype)
        own = timm.create_model(options.teacher, img_size=size)
        for name, model in (("teacher", own), ("student", sightline.load(options.student).model)):
            torch.compiler.reset()
            call = torch.compile(model.eval().to(device, dtype))
            found = measure(lambda: call(images), device, 2.0 if device.type == "cuda" else 0.0, warm=5)  # noqa: B023
            rate = None if found["ms"] is None else round(1e3 * options.batch / found["ms"], 1)
            yield {"model": name, "size": size, "batch": options.batch, "ms": found["ms"], "images_per_second": rate}


def ladder(options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """Every mechanism with every number of softmax blocks; all blocks of softmax are the teacher."""
    teacher = _teacher(options)
    count = len(teacher.blocks)  # type: ignore[arg-type]
    end = time.time() + options.budget
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(max(1, (os.cpu_count() or 1) // options.jobs)))
    top = accuracy((str(_save(teacher, options.runs / "teacher.safetensors")), options.eval), workers=options.workers)
    numbers = [number for number in options.keep if number < count]
    steps = [(name, number) for name in options.attention or MECHANISMS for number in numbers]
    known = {(row["attention"], row["softmax"]): row for row in kept(options.out) if "error" not in row}
    known["softmax", count] = {"attention": "softmax", "softmax": count, **top}
    missing = [step for step in steps if step not in known]
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        names = list(dict.fromkeys(name for name, _ in missing))
        stages = dict(zip(names, pool.map(_first_stage, [(name, options, end) for name in names]), strict=True))
        tasks = [pool.submit(_student, step, stages[step[0]], count, options, end) for step in missing]
        for task in as_completed(tasks):
            row = task.result()
            if "error" not in row:
                row |= with_error(row["top1"], int(top["images"]))
                known[row["attention"], row["softmax"]] = row
            yield row
    for step in [("softmax", count), *steps]:  # timed when no training runs next to it
        if step in known and step[1] in options.keep:
            rates = {} if options.no_speed else _speeds(_step(teacher, known[step]), options, device)
            yield {**known[step], **rates, **({"timed_at": source_commit()[0]} if rates else {})}


def _first_stage(job: tuple[str, argparse.Namespace, float]) -> Row:
    """The first stage of a mechanism, which its students share."""
    attention, options, end = job
    folder = f"{_folder(attention, options)}_stage1"
    values = {**_keys(attention, options), "schedule.epochs": options.stage1_epochs, "run.folder": folder}
    return _trained("linearize_stage1", values, options, end)


def _student(step: tuple[str, int], first: Row, count: int, options: argparse.Namespace, end: float) -> Row:
    """One student of the ladder, from the first stage of its mechanism."""
    attention, number = step
    blocks = chosen_blocks(number, count)
    row = {"attention": attention, "softmax": number, "blocks": list(blocks), "stage1_errors": first.get("errors")}
    if "error" in first:
        return {**row, "error": first["error"]}
    values = {
        **_keys(attention, options), "schedule.epochs": options.epochs, "linearize.start": first["folder"],
        "linearize.keep": blocks, "run.folder": f"{_folder(attention, options)}_{number}",
    }  # fmt: skip
    found = _trained("linearize", values, options, end)
    return {**row, **{key: found[key] for key in ("agreement", "top1", "error") if key in found}}


def _keys(attention: str, options: argparse.Namespace) -> dict[str, object]:
    """The settings that all trainings of a mechanism share."""
    own = {"schedule.warmup_epochs": 1, ATTENTION: attention, **parse_changes(options.set, "set", {})}
    return {**_common(options), **own, **{f"data.{key}": value for key, value in labelled(options.eval).items()}}


def _trained(recipe: str, values: Row, options: argparse.Namespace, end: float) -> Row:
    """`run_one` in a process of the pool, which may have compiled another model before."""
    torch.compiler.reset()
    share_decoded(options.runs / "decoded")
    return run_one(recipe, values, end)


def _folder(attention: str, options: argparse.Namespace) -> Path:
    folder: Path = options.runs / "".join(c if c.isalnum() else "_" for c in attention)
    return folder


def _step(teacher: VisionModel, row: Row) -> VisionModel:
    """The untrained model of a row of the ladder."""
    return teacher if row["attention"] == "softmax" else linearize(teacher, row["attention"], row["softmax"])


def resolution(options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """Accuracy and speed of teacher and student by size, and accuracy after a short training there.

    Both learn there what the teacher says at its own size.
    """
    teacher = _save(_teacher(options), options.runs / "teacher.safetensors")
    own = sightline.load(teacher).card.input_size[-1]
    known = {_key(row) for row in kept(options.out) if "error" not in row}
    models = {"teacher": str(teacher), "student": options.student}

    def scores(path: str, size: int) -> Row:
        return accuracy((path, options.eval), img_size=size, workers=options.workers)

    for size, (name, path) in itertools.product(options.sizes or SIZES, models.items()):
        plain: Row = {"model": name, "size": size, "trained": False}
        trained = {**plain, "trained": True}
        if _key(plain) not in known:
            rate = _rate(sightline.load(path).model, size, options, device)
            yield {**plain, **scores(path, size), f"images_per_second_{size}": rate}
        if _key(trained) in known or (name, size) == ("teacher", own):
            continue
        values = {
            **_common(options), "data.size": size, "schedule.epochs": max(1, options.epochs // 4), "optim.lr": 2e-4,
            "schedule.warmup_epochs": 0, "linearize.start": path, **_like(path), "linearize.teacher_size": own,
            "linearize.tokens": 0, "linearize.hidden": 0, **parse_changes(options.set, "set", {}),
            "run.folder": str(options.runs / f"{name}_at_{size}"),
        }  # fmt: skip
        done = run_one("linearize", values, time.time() + options.budget)
        yield {**trained, **({"error": done["error"]} if "error" in done else scores(done["folder"], size))}


def finetune(options: argparse.Namespace, device: torch.device) -> Iterator[Row]:
    """Segmentation and classification from the student, from random weights and from the teacher, side by side."""
    _save(_teacher(options), options.runs / "teacher.safetensors")
    wanted = [task for task in TASKS if getattr(options, task)]
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(_finetuned, [(task, start, options) for task in wanted for start in STARTS])


def _finetuned(job: tuple[str, str, argparse.Namespace]) -> Row:
    """One training of `finetune`."""
    task, start, options = job
    recipe, data = TASKS[task], getattr(options, task)
    card: Any = sightline.load(options.student).card
    own = {key: value for key, value in card.arguments.items() if key != "num_classes"}
    args = {**own, "attention": "softmax"} if start == "teacher" else own
    weights = {"student": options.student, "random": None, "teacher": str(options.runs / "teacher.safetensors")}[start]
    folder = options.runs / f"{task}_{start}"
    changes: dict[str, Any] = {
        "model.name": card.name, "model.args": args, "model.checkpoint": weights, "model.pretrained": False,
        "data.mean": card.mean, "data.std": card.std, "run.tensorboard": False,
        "run.threads": max(1, (os.cpu_count() or 1) // options.jobs),
        **parse_changes(options.set, "set", {}),
    }  # fmt: skip
    begun = time.time()
    run = train(recipe, data, out=folder, **changes)
    row = {"task": task, "start": start, "recipe": recipe, "epochs": len(run.history), run.metric: run.best}
    if run.metric == "top1":
        row |= accuracy((str(folder), data))
    return {**row, "minutes": round((time.time() - begun) / 60, 2)}


def _common(options: argparse.Namespace) -> dict[str, object]:
    """The keys of all trainings of students."""
    return {
        "model.name": options.teacher, "model.checkpoint": options.checkpoint,
        "model.pretrained": options.checkpoint is None, "data.images": tuple(options.data),
        "data.workers": options.workers, "run.tensorboard": False, "run.report": False, "run.save_minutes": None,
        "run.save_every": 10**6, "run.eval_every": 10**6,
    }  # fmt: skip


def _like(run: str) -> dict[str, object]:
    """The mechanism of every block of a student."""
    pattern = sightline.load(run).card.arguments.get("attention", "inline")
    return {ATTENTION: pattern, "linearize.keep": 0}


def _teacher(options: argparse.Namespace) -> VisionModel:
    model = Model(name=options.teacher, checkpoint=options.checkpoint, pretrained=options.checkpoint is None)
    return linearize(read_teacher(model), "softmax").float().eval()


def _save(model: VisionModel, path: Path) -> Path:
    """The teacher as a file that `sightline.load` opens."""
    cfg: Any = model.pretrained_cfg
    arguments: Any = jsonable({**recorded_arguments(cfg.get("notes"), type(model)), "num_classes": model.num_classes})
    known = imagenet_classes()
    classes = known if model.num_classes == len(known) else tuple(f"class {i}" for i in range(model.num_classes))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_weights(path, model, card_of(str(cfg["architecture"]), arguments, model, classes, 3, model.img_size))
    return path


def _speeds(model: nn.Module, options: argparse.Namespace, device: torch.device) -> Row:
    sizes = options.sizes or SPEEDS
    return {f"images_per_second_{size}": _rate(model, size, options, device) for size in sizes}


@torch.no_grad()
def _rate(model: nn.Module, size: int, options: argparse.Namespace, device: torch.device) -> float | None:
    """Images per second in evaluation mode: on a GPU in bfloat16 by replay of a CUDA graph, compiled or not."""
    fast = device.type == "cuda"
    images = torch.randn(options.batch, 3, size, size, device=device)
    module: Any = replayed(model.eval().to(device), device)
    if options.compile and fast:
        torch.compiler.reset()
        module = torch.compile(model, mode="reduce-overhead", dynamic=False)
    with torch.autocast(device.type, torch.bfloat16, enabled=fast):
        found = measure(lambda: module(images), device, 0.5 if fast else 0.0, warm=5 if fast else 0)
    return None if found["ms"] is None else round(1e3 * options.batch / found["ms"], 1)


if __name__ == "__main__":
    finish(main)
