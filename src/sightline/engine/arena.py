"""Train and test the models of one recipe of the Long Range Arena that differ in their attention mechanism."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median_high
from typing import Any

import torch
from pydantic import TypeAdapter

from sightline.engine import records, settings
from sightline.engine.evaluate import evaluate
from sightline.engine.records import DONE, METRICS, VERSIONS
from sightline.engine.run_folder import differences
from sightline.engine.train import train
from sightline.hub import load
from sightline.tasks.base import Progress
from sightline.tasks.config import RunConfig
from sightline.util.device import choose_device, usable_precision
from sightline.util.documents import check, read_json, read_object
from sightline.util.errors import FileError, InputError
from sightline.util.files import write_json

OWN_OPTIONS = {  # keys that have an option of their own
    "model.attention": "--attention", "run.folder": "--out", "data.path": "--data", "data.name": "TASK",
    "model.name": "TASK",
}  # fmt: skip
MEMORY = "memory.json"  # peak of the training, in a run folder


@dataclass(frozen=True)
class Done:
    """What a complete run says of itself."""

    step: int
    top1: float
    seconds: float


def configure(
    task: str, attention: str, out: Path, *, data: str | None = None, steps: int | None = None,
    changes: Iterable[str] = (),
) -> Any:  # fmt: skip
    """The configuration of one run.

    Args:
        task: listops, text, retrieval, image or pathfinder.
        attention: the mechanism.
        out: the folder of the run.
        data: folder with the files as published.
        steps: updates in all, with the schedule compressed to them; by default as published.
        changes: keys of the configuration, as KEY=VALUE.

    Raises:
        InputError: an option cannot be used.
    """
    recipe = settings.load_recipe(f"lra_{task}")
    values = settings.parse_changes(changes, "set", OWN_OPTIONS)
    values |= {"model.attention": attention, "run.folder": str(out)}
    if data is not None:
        values["data.path"] = data
    if steps is not None:
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
    done = read_json(folder / DONE, TypeAdapter(Done))
    peak = check(TypeAdapter(int | None), read_object(folder / MEMORY).get("bytes"), folder / MEMORY)
    rates = [rate for row in records.read_rows(folder) if (rate := row.get("images_per_second")) is not None]
    if not rates:
        raise FileError(f"{folder / METRICS}: damaged; remove the folder of the run to train again")
    versions = read_object(folder / VERSIONS)
    loaded = load(folder / "checkpoints" / "best" / "model.safetensors")
    precision = usable_precision(choose_device(config.run.device), config.run.precision)
    scores = evaluate(
        loaded, split="test", batch_size=config.batch.eval_size or config.batch.size, device=config.run.device,
        precision=precision, progress=progress,
    )  # fmt: skip
    return {
        "parameters": loaded.parameters, "steps": done.step, "batch": config.batch.size, "lr": config.optim.lr,
        "seed": config.run.seed, "val": round(done.top1, 4), "test": round(scores["top1"], 4),
        "examples": scores.images, "examples_per_second": median_high(rates), "peak_bytes": peak,
        "seconds": round(done.seconds, 1), "precision": precision,
        **{key: versions.get(key) for key in ("device", "torch", "commit")},
    }  # fmt: skip


def _train(config: RunConfig, memory: Path) -> None:
    """Train, and write the peak memory on a GPU."""
    on_gpu = torch.cuda.is_available() and config.run.device != "cpu"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    train(config)
    write_json(memory, {"bytes": torch.cuda.max_memory_allocated() if on_gpu else None})
