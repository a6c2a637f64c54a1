"""A run small enough for tests: coloured squares in folders, and a transformer of two blocks."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image
from safetensors.torch import load_file

import sightline
from sightline.engine import train as engine
from sightline.engine.settings import configure as resolve
from sightline.tasks.config import RunConfig

SOURCE = Path(sightline.__file__).parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
CLASSES = ("blue", "green", "red")
RECIPE: dict[str, dict[str, Any]] = {
    "data": {"size": 16, "crop_pct": 1.0, "workers": 0},
    "model": {
        "name": "inline_deit_tiny",
        "args": {"patch_size": 8, "embed_dims": 16, "num_heads": 2, "depths": 2},
        "drop_path": 0.1,
    },
    "batch": {"size": 8},
    "optim": {"lr": 3e-3},
    "schedule": {"epochs": 2, "warmup_epochs": 1},
    "augment": {"scale": [0.5, 1.0], "mixup": 0.2, "cutmix": 0.5, "erase": 0.25, "auto": "rand-m5-mstd0.5-inc1"},
    "loss": {"smoothing": 0.1},
    "ema": {"decay": 0.9},
    "run": {"device": "cpu", "threads": 1, "report": False, "tensorboard": False, "save_minutes": None},
}


def configure(images: Path, out: Path, **changes: Any) -> Any:
    """The tiny run with `section__key=value` changes, or a whole `section={...}`."""
    recipe = {name: dict(values) for name, values in RECIPE.items()}
    for name, value in {"data__path": str(images), "run__folder": str(out), **changes}.items():
        section, _, key = name.partition("__")
        if key:
            recipe.setdefault(section, {})[key] = value
        else:
            recipe[section] = value
    return resolve(recipe)


def train(config: RunConfig) -> Path:
    """Train; the run folder."""
    return engine.train(config).folder


def make_images(root: Path, train: int = 12, val: int = 5) -> Path:
    """`root`/{train,val}/CLASS/*.png of 20 x 24 pixels in which the channel of the class is brighter."""
    rng = np.random.default_rng(0)
    for split, count in (("train", train), ("val", val)):
        for number, name in enumerate(CLASSES):
            (root / split / name).mkdir(parents=True, exist_ok=True)
            for i in range(count):
                pixels = rng.integers(0, 120, (20, 24, 3))
                pixels[..., 2 - number] += 100
                Image.fromarray(pixels.astype(np.uint8)).save(root / split / name / f"{i}.png")
    return root


def write_recipe(path: Path, **sections: dict[str, Any]) -> Path:
    """RECIPE with changes, as a file."""
    recipe = {name: {**values, **sections.pop(name, {})} for name, values in RECIPE.items()} | sections
    path.write_text(yaml.safe_dump(recipe))
    return path


def command(recipe: Path, data: Path, out: Path, *more: str) -> list[str]:
    """The command line of a run."""
    return [sys.executable, "-m", "sightline", "train", "--config", str(recipe), "--data", str(data), "--out", str(out),
            *more]  # fmt: skip


def run(arguments: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run to the end."""
    return subprocess.run(arguments, env=ENVIRONMENT, capture_output=True, text=True, timeout=240, **options)


def metrics(out: Path) -> list[dict[str, Any]]:
    """The lines of the metrics, without what depends on the clock."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "images_per_second"} for line in lines]


def weights(out: Path) -> dict[str, bytes]:
    """Every tensor of the last checkpoint, to the last bit."""
    files = [load_file(out / "checkpoints/last" / name) for name in ("model.safetensors", "state.safetensors")]
    return {f"{i}/{key}": value.numpy().tobytes() for i, file in enumerate(files) for key, value in file.items()}
