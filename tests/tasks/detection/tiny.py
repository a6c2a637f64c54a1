"""COCO instances small enough for tests: squares and discs, as polygons and run lengths, and a crowd."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from sightline.engine.settings import configure as resolve

COLOURS = {1: (200, 40, 40), 7: (40, 60, 220)}  # by category: square, disc
BACKBONE = {"depths": [1, 1, 1, 1], "embed_dims": [16, 32, 40, 64], "num_heads": [1, 2, 5, 8]}
RECIPE: dict[str, Any] = {
    "task": "detection",
    "data": {"short": 96, "long": 128, "workers": 0},
    "model": {"name": "inline_pvt_tiny", "args": BACKBONE, "channels": 32, "samples": 32},
    "batch": {"size": 2},
    "optim": {"lr": 2e-3, "weight_decay": 0.01, "clip": 5.0},
    "schedule": {"epochs": 2},
    "augment": {"hflip": 0.0},
    "run": {"device": "cpu", "threads": 1, "report": False, "tensorboard": False, "save_minutes": None},
}


def runs(mask: np.ndarray) -> list[int]:
    """Uncompressed run lengths, down the columns, zeros first."""
    flat = mask.T.reshape(-1).astype(int)
    places = np.flatnonzero(np.diff(flat)) + 1
    lengths = np.diff([0, *places.tolist(), flat.size]).tolist()
    return [0, *lengths] if flat[0] else lengths


def scene(seed: int, scale: int = 1) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """An image (96 `scale`, 112 `scale`, 3), and its objects: a square as a polygon, a disc as run lengths."""
    rng = np.random.default_rng(seed)
    height, width = 96 * scale, 112 * scale
    image = rng.integers(20, 60, (96, 112, 3)).astype(np.uint8).repeat(scale, 0).repeat(scale, 1)
    left, top, side = (scale * int(rng.integers(*bounds)) for bounds in ((2, 8), (2, 8), (38, 44)))
    image[top : top + side, left : left + side] = COLOURS[1]
    corners = [left, top, left + side, top, left + side, top + side, left, top + side]
    square = {"category_id": 1, "bbox": [left, top, side, side], "area": side * side, "segmentation": [corners]}
    down, across = np.mgrid[:height, :width]
    y, x, r = (scale * int(rng.integers(*bounds)) for bounds in ((68, 72), (84, 88), (20, 23)))
    mask = (down - y) ** 2 + (across - x) ** 2 <= r * r
    image[mask] = COLOURS[7]
    disc = {
        "category_id": 7,
        "bbox": [x - r, y - r, 2 * r + 1, 2 * r + 1],
        "area": int(mask.sum()),
        "segmentation": {"size": [height, width], "counts": runs(mask)},
    }
    return image, [square, disc]


def instances(count: int, scale: int = 1) -> tuple[list[np.ndarray], dict[str, Any]]:
    """Images, and their COCO file; the first has a crowd too."""
    images, objects = [], []
    entries = []
    size = (96 * scale, 112 * scale)
    for number in range(count):
        image, found = scene(number, scale)
        images.append(image)
        entries.append({"id": 100 + number, "file_name": f"{number}.png", "height": size[0], "width": size[1]})
        objects += [{**item, "image_id": 100 + number, "iscrowd": 0} for item in found]
    crowd = np.zeros(size, bool)
    crowd[:5, 90:112] = True
    objects.append(
        {"image_id": 100, "category_id": 7, "bbox": [90, 0, 22, 5], "area": 110, "iscrowd": 1,
         "segmentation": {"size": list(size), "counts": runs(crowd)}}
    )  # fmt: skip
    categories = [{"id": 7, "name": "disc"}, {"id": 1, "name": "square"}]
    annotations = [{**item, "id": i + 1} for i, item in enumerate(objects)]
    return images, {"images": entries, "annotations": annotations, "categories": categories}


def make_data(root: Path, count: int = 2, scale: int = 1) -> Path:
    """`root`/{train2017,val2017}/N.png and annotations; the same scenes in both splits."""
    (root / "annotations").mkdir(parents=True)
    for split in ("train2017", "val2017"):
        (root / split).mkdir()
        images, content = instances(count, scale)
        for entry, image in zip(content["images"], images, strict=True):
            Image.fromarray(image).save(root / split / entry["file_name"])
        (root / "annotations" / f"instances_{split}.json").write_text(json.dumps(content))
    return root


def change(root: Path, split: str = "train2017", **lists: Any) -> Path:
    """Rewrite a split's file by functions of its lists; gives its path."""
    path = root / "annotations" / f"instances_{split}.json"
    content = json.loads(path.read_text())
    for name, alter in lists.items():
        alter(content[name])
    path.write_text(json.dumps(content))
    return path


def config(root: Path, out: Path, **sections: dict[str, Any]) -> Any:
    """RECIPE with changes, resolved."""
    recipe = {name: {**v, **sections.pop(name, {})} if isinstance(v, dict) else v for name, v in RECIPE.items()}
    recipe |= sections
    recipe["data"]["path"], recipe["run"]["folder"] = str(root), str(out)
    return resolve(recipe)
