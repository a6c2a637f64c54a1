"""Train and test the models of one recipe of the Long Range Arena that differ in their attention mechanism."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from sightline.engine.evaluate import evaluate
from sightline.engine.run_folder import DONE, differences
from sightline.engine.settings import load_recipe, resolve
from sightline.engine.train import train
from sightline.hub import load
from sightline.tasks.base import Progress
from sightline.tasks.config import RunConfig
from sightline.util.errors import FileError, InputError
from sightline.util.files import read_json

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
    task: str,
    attention: str,
    folder: Path,
    *,
    data: str | None = None,
    steps: int | None = None,
    settings: Iterable[str] = (),
) -> Any:
    """The configuration of one run.

    Args:
        task: listops, text, retrieval, image or pathfinder.
        attention: the mechanism.
        folder: the parent of the run folders.
        data: folder with the files as published.
        steps: updates in all, with the schedule compressed to them; by default as published.
        settings: keys of the configuration, as KEY=VALUE.

    Raises:
        InputError: an option cannot be used.
    """
    recipe = load_recipe(f"lra_{task}")
    texts = dict(_parse_setting(text) for text in settings)
    texts |= {"model.attention": json.dumps(attention), "run.folder": json.dumps(str(run_folder(folder, attention)))}
    if data is not None:
        texts["data.path"] = json.dumps(data)
    if steps is not None:
        if not 1 <= steps <= MAX_STEPS:
            raise InputError(f"--steps: expected 1 to {MAX_STEPS:,} updates; got {steps}")
        schedule = resolve(recipe, texts).schedule
        epochs = next(count for count in range(min(schedule.epochs, steps), 0, -1) if steps % count == 0)
        texts |= {"schedule.epochs": str(epochs), "data.epoch_steps": str(steps // epochs)}
        texts["schedule.warmup_epochs"] = str(schedule.warmup_epochs * epochs / schedule.epochs)
    return resolve(recipe, texts)


def _parse_setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or "." not in key:
        raise InputError(f"--set: expected KEY=VALUE, e.g. batch.size=64; got {text!r}")
    if key in OWN_OPTIONS:
        raise InputError(f"--set: {key} follows from {OWN_OPTIONS[key]}; give that instead")
    return key, value


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
    loaded = load(str(folder / "checkpoints" / "best" / "model.safetensors"))
    scores = evaluate(
        loaded, split="test", batch_size=config.batch.eval_size or config.batch.size, device=config.run.device,
        precision=config.run.precision, progress=progress,
    )  # fmt: skip
    versions, peak = read_json(folder / "versions.json"), read_json(folder / MEMORY).get("bytes")
    if not isinstance(peak, int | None):
        raise FileError(f"{folder / MEMORY} is damaged; remove it and run the command again")
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
    peak = torch.cuda.max_memory_allocated() if on_gpu else None
    memory.write_text(json.dumps({"bytes": peak}) + "\n", encoding="utf-8")


def _median_rate(path: Path) -> float:
    """Examples per second, the median over the epochs of a run."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        rates = [float(json.loads(line)["images_per_second"]) for line in lines]
        return sorted(rates)[len(rates) // 2]
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise FileError(f"{path} is damaged; remove the folder of the run to train again") from error
