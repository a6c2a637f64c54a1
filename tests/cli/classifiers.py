"""Small classifiers in files and run folders, and folders of pictures for them."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from PIL import Image
from torch import nn

from sightline.engine.checkpoint import write_weights
from sightline.tasks.card import ModelCard

from ..models.weights import enliven
from .checkpoints import SMALL, small

CLASSES = ("blue", "green", "red")


def pictures(
    folder: Path, classes: tuple[str, ...] = CLASSES, count: int = 4, size: tuple[int, int] = (50, 40)
) -> Path:
    """`folder/class/00.png` and so on: noise around a colour of the class."""
    for label, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        rng = np.random.default_rng(label)
        for i in range(count):
            noise = rng.integers(0, 120, (40, 50, 3))
            noise[..., label % 3] += 120
            Image.fromarray(noise.astype(np.uint8)).save(folder / name / f"{i:02d}.png")
    return folder


def classifier(path: Path, classes: tuple[str, ...] = CLASSES, family: str = "deit", **card: Any) -> nn.Module:
    """Write a small model of sightline's layout with its card, and give it."""
    name, args = SMALL[family]
    arguments = {**{k: list(v) if isinstance(v, tuple) else v for k, v in args.items()}, "img_size": 32}
    arguments["num_classes"] = len(classes)
    model = enliven(small(family, img_size=32, num_classes=len(classes))).eval()
    write_weights(path, model, ModelCard(name, arguments, classes, **{"input_size": (3, 32, 32), **card}))
    return model


def run_folder(path: Path, data: Path) -> nn.Module:
    """A run folder with best weights and a configuration that names its data."""
    model = classifier(path / "checkpoints" / "best" / "model.safetensors")
    (path / "config.yaml").write_text(yaml.safe_dump({"data": {"path": str(data), "size": 32}}))
    return model


@torch.no_grad()
def by_hand(
    model: nn.Module, folder: Path, card: ModelCard, classes: tuple[str, ...] = CLASSES
) -> list[tuple[int, list[float]]]:
    """Label and probabilities of every picture, one by one, with timm's own transform."""
    from timm.data import create_transform

    transform = create_transform(
        card.input_size, is_training=False, interpolation=card.interpolation, mean=card.mean, std=card.std,
        crop_pct=card.crop_pct,
    )  # fmt: skip
    found = []
    for label, name in enumerate(classes):
        for path in sorted((folder / name).iterdir()):
            with Image.open(path) as image:
                logits = model(transform(image.convert("RGB")).unsqueeze(0))[0]
            found.append((label, logits.softmax(0).tolist()))
    return found
