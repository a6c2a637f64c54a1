"""A data set small enough for tests: two coloured shapes on a ground, and masks that know them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from sightline.engine.settings import configure as resolve

CLASSES = ("ground", "square", "disc")
COLOURS = np.array([[40, 60, 40], [200, 40, 40], [40, 60, 220]])
BACKBONE = {"depths": [1, 1, 1, 1], "embed_dims": [16, 32, 40, 64], "num_heads": [1, 2, 5, 8]}
RECIPE: dict[str, Any] = {
    "task": "segmentation",
    "data": {"size": 64, "workers": 0},
    "model": {"name": "inline_pvt_tiny", "args": BACKBONE, "channels": 32, "drop": 0.0},
    "batch": {"size": 2},
    "optim": {"lr": 3e-3, "weight_decay": 0.01},
    "schedule": {"epochs": 2},
    "run": {"device": "cpu", "threads": 1, "report": False, "tensorboard": False, "save_minutes": None},
}


def scene(seed: int, height: int = 64, width: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """An image (H, W, 3) and its mask (H, W)."""
    rng = np.random.default_rng(seed)
    mask = np.zeros((height, width), np.uint8)
    top, left = rng.integers(4, height // 2 - 4), rng.integers(4, width // 2 - 4)
    mask[top : top + 24, left : left + 20] = 1
    down, across = np.mgrid[:height, :width]
    mask[(down - rng.integers(40, 50)) ** 2 + (across - rng.integers(40, 50)) ** 2 < 100] = 2
    noise = rng.integers(-20, 20, (height, width, 3))
    return np.clip(COLOURS[mask] + noise, 0, 255).astype(np.uint8), mask


def make_data(root: Path, train: int = 2, val: int = 2, **size: int) -> Path:
    """`root`/{images,masks}/{train,val}/N.png and classes.json; the same scenes in both splits."""
    for split, count in (("train", train), ("val", val)):
        for kind in ("images", "masks"):
            (root / kind / split).mkdir(parents=True)
        for i in range(count):
            image, mask = scene(i, **size)
            mask[0, :4] = 9
            Image.fromarray(image).save(root / "images" / split / f"{i}.png")
            Image.fromarray(mask).save(root / "masks" / split / f"{i}.png")
    (root / "classes.json").write_text(json.dumps({"classes": CLASSES, "ignore_index": 9}))
    return root


def config(root: Path, out: Path, **sections: dict[str, Any]) -> Any:
    """RECIPE with changes, resolved."""
    recipe = {name: {**v, **sections.pop(name, {})} if isinstance(v, dict) else v for name, v in RECIPE.items()}
    recipe |= sections
    recipe["data"]["path"], recipe["run"]["folder"] = str(root), str(out)
    return resolve(recipe)
