"""Train and test the models of one recipe of the Long Range Arena that differ in their attention mechanism."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from statistics import median_high
from typing import Any

import torch

from sightline.engine import settings
from sightline.engine.evaluate import evaluate
from sightline.engine.run_folder import DONE, differences
from sightline.engine.train import train
from sightline.hub import load
from sightline.tasks.base import Progress
from sightline.tasks.config import RunConfig
from sightline.util.errors import FileError, InputError
from sightline.util.files import read_json, write_json

OWN_OPTIONS = {  # keys that have an option of their own
    "model.attention": "--attention", "run.folder": "--out", "data.path": "--data", "data.name": "TASK",
    "model.name": "TASK",
}  # fmt: skip
MAX_STEPS = 10**9
MEMORY = "memory.json"  # peak of the training, in a run folder


def run_folder(folder: Path, attention: str) -> Path:
    """The folder of the run with a mechanism: `soft(ratio=2)` -> `soft_ratio_2`."""
    return folder / re.sub(r"[^A-Za-z0-9]+", "_", attention).strip("_")


def configure(
    task: str, attention: str, folder: Path, *, data: str | None = None, steps: int | None = None,
    changes: Iterable[str] = (),
) -> Any:  # fmt: skip
    """The configuration of one run.

    Args:
        task: listops, text, retrieval, image or pathfinder.
        attention: the mechanism.
        folder: the parent of the run folders.
        data: folder with the files as published.
        steps: updates in all, with the schedule compressed to them; by default as published.
        changes: keys of the configuration, as KEY=VALUE.

    Raises:
        InputError: an option cannot be used.
    """
    recipe = settings.load_recipe(f"lra_{task}")
    values: dict[str, object] = {}
    for text in changes:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or "." not in key:
            raise InputError(f"--set: expected KEY=VALUE, e.g. batch.size=64; got {text!r}")
        if key in OWN_OPTIONS:
            raise InputError(f"--set: {key} follows from {OWN_OPTIONS[key]}; give that instead")
        values[key] = settings.parse(value)
    values |= {"model.attention": attention, "run.folder": str(run_folder(folder, attention))}
    if data is not None:
        values["data.path"] = data
    if steps is not None:
        if not 1 <= steps <= MAX_STEPS:
            raise InputError(f"--steps: expected 1 to {MAX_STEPS:,} updates; got {steps}")
        schedule = settings.configure(recipe, values).schedule
        epochs = next(count for count in range(min(schedule.epochs, steps), 0, -1) if steps % count == 0)
        values |= {"schedule.epochs": epochs, "data.epoch_steps": steps // epochs}
        values["schedule.warmup_epochs"] = schedule.warmup_epochs * epochs / schedule.epochs
    return settings.configure(recipe, values)


def train_and_test(config: RunConfig, progress: Progress | None = None) -> dict[str, Any]:
    """Train unless the run is complete, and test the weights that validation chose.

    Args:
        config: as `configure` gives it, with a folder.
        progress: opens a progress bar for (total, title).

    Returns:
        Accuracy, speed, memory and settings, for JSON.

    Raises:
        InputError: the folder has a run with another configuration.
        FileError: a file of the run is damaged.
    """
    assert config.run.folder is not None
    folder = Path(config.run.folder)
    if not (folder / DONE).is_file():
        _train(config, folder / MEMORY)
    elif different := differences(folder, config):
        raise InputError(f"{folder}: a run with another {', '.join(different[:4])}; give another --out")
    done, rate = read_json(folder / DONE), _median_rate(folder / "metrics.jsonl")
    if not all(isinstance(done.get(key), int | float) for key in ("step", "top1", "seconds")):
        raise FileError(f"{folder / DONE} is damaged; remove the folder of the run to train again")
    versions, peak = read_json(folder / "versions.json"), read_json(folder / MEMORY).get("bytes")
    if not isinstance(peak, int | None):
        raise FileError(f"{folder / MEMORY} is damaged; remove it and run the command again")
    loaded = load(folder / "checkpoints" / "best" / "model.safetensors")
    scores = evaluate(
        loaded, split="test", batch_size=config.batch.eval_size or config.batch.size, device=config.run.device,
        precision=config.run.precision, progress=progress,
    )  # fmt: skip
    return {
        "parameters": loaded.parameters, "steps": done["step"], "batch": config.batch.size, "lr": config.optim.lr,
        "seed": config.run.seed, "val": round(done["top1"], 4), "test": round(scores["top1"], 4),
        "examples": scores.images, "examples_per_second": rate, "peak_bytes": peak,
        "seconds": round(done["seconds"], 1), "precision": config.run.precision,
        **{key: versions.get(key) for key in ("device", "torch", "commit")},
    }  # fmt: skip


def _train(config: RunConfig, memory: Path) -> None:
    """Train, and write the peak memory on a GPU."""
    on_gpu = torch.cuda.is_available() and config.run.device != "cpu"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    train(config)
    write_json(memory, {"bytes": torch.cuda.max_memory_allocated() if on_gpu else None})


def _median_rate(path: Path) -> float:
    """Examples per second, the median over the epochs of a run."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return median_high(float(json.loads(line)["images_per_second"]) for line in lines)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FileError(f"{path} is damaged; remove the folder of the run to train again") from error
