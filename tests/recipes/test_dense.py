"""Recipes of segmentation and detection: they can be read and built, and open with what was published."""

import re
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import torch

from sightline.engine.settings import configure as resolve
from sightline.engine.settings import load_recipe, recipe_names
from sightline.models.zoo import VARIANTS
from sightline.tasks.detection.model import Detector
from sightline.tasks.segmentation.model import Segmenter

# Published results, once: box AP, box and mask AP, mIoU.
RETINANET = {"soft_norm_tiny": 40.0, "soft_norm_small": 42.8, "soft_norm_medium": 44.3, "soft_norm_large": 45.3}
MASK_RCNN = {
    "soft_norm_tiny": (41.2, 38.2), "soft_norm_small": (43.8, 40.1), "soft_norm_medium": (46.6, 42.0),
    "soft_norm_large": (47.0, 42.2),
}  # fmt: skip
UPERNET = {"soft_norm_small": 46.2, "soft_norm_medium": 48.0, "inline_swin_tiny": 45.57}
SEMANTIC_FPN = {"inline_pvt_tiny": 39.16}
UNQUOTED = {  # InLine on COCO: head, epochs
    "mask_rcnn": ("mask_rcnn", 12), "mask_rcnn_3x": ("mask_rcnn", 36), "cascade_mask_rcnn": ("cascade_mask_rcnn", 36),
}  # fmt: skip
ADE20K, COCO = 20210, 117266  # training images; of COCO those with objects


def config_of(name: str) -> Any:
    return resolve(load_recipe(name))


def opening(name: str) -> str:
    text = (resources.files("sightline") / "recipes" / f"{name}.yaml").read_text(encoding="utf-8")
    return "".join(re.findall(r"\A(?:#.*\n)+", text))


DENSE = [name for name in recipe_names() if config_of(name).task in ("segmentation", "detection")]


def published() -> list[tuple[str, str, str]]:
    """Recipe, backbone and what its opening must say."""
    rows = [(f"retinanet_{name}", name, f"{value} box AP") for name, value in RETINANET.items()]
    rows += [(f"mask_rcnn_{name}", name, f"{box} box AP, {mask} mask AP") for name, (box, mask) in MASK_RCNN.items()]
    rows += [(f"upernet_{name}", name, f"{value} mIoU") for name, value in UPERNET.items()]
    return rows + [(f"semantic_fpn_{name}", name, f"{value} mIoU") for name, value in SEMANTIC_FPN.items()]


@pytest.mark.parametrize(("name", "backbone", "result"), published())
def test_opens_with_the_published_result_and_the_command(name: str, backbone: str, result: str) -> None:
    text = opening(name)
    assert result in text.splitlines()[0]
    assert f"sightline train --config {name} --data" in text
    assert config_of(name).model.name == backbone


@pytest.mark.parametrize("base", UNQUOTED)
@pytest.mark.parametrize(
    ("backbone", "title", "drop_path", "decay"),
    [("inline_pvt_tiny", "InLine-PVT-T", 0.1, 1e-4), ("inline_swin_tiny", "InLine-Swin-T", 0.2, 0.05)],
)
def test_inline_on_coco(base: str, backbone: str, title: str, drop_path: float, decay: float) -> None:
    name, (head, epochs) = f"{base}_{backbone}", UNQUOTED[base]
    text, config = opening(name), config_of(name)
    assert f"with {title}, {'1x' if epochs == 12 else '3x'} ({epochs} epochs)." in text.splitlines()[0]
    assert "in the tables of the InLine paper" in text
    assert f"-m sightline train --config {name} --data COCO" in text
    assert "--model.pretrained true" in text
    assert (config.model.name, config.model.head, config.schedule.epochs) == (backbone, head, epochs)
    assert (config.model.drop_path, config.optim.weight_decay) == (drop_path, decay)
    assert config.schedule == config_of(base).schedule
    assert config.augment == config_of(base).augment


def test_docs_name_every_recipe() -> None:
    text = (Path(__file__).parents[2] / "docs/dense.md").read_text(encoding="utf-8")
    table = text[text.index("| `model.head`") : text.index("`model.name` is any")]
    named = [name for name in DENSE if not name.endswith(("_small", "_medium", "_large"))]  # those stand after a _tiny
    assert {name for name in named if f"`{name}`" not in table} == {"bccd", "camvid", "coco_mini"}


@pytest.mark.parametrize("name", DENSE)
def test_opens_with_a_command(name: str) -> None:
    assert re.search(r"^# +(torchrun .*)?sightline train", opening(name), re.MULTILINE)
    assert config_of(name).data.path is None


@pytest.mark.slow
@pytest.mark.parametrize("name", DENSE)
def test_every_recipe_builds_its_model(name: str) -> None:
    config = config_of(name)
    assert config.model.name in VARIANTS
    with torch.device("meta"):
        if config.task == "segmentation":
            Segmenter(config.model, 3, config.loss.auxiliary > 0)
        else:
            Detector(config.model, 3, config.test)


@pytest.mark.parametrize(("name", "updates"), [("upernet", 160_000), ("semantic_fpn", 40_000)])
def test_updates_on_ade20k(name: str, updates: int) -> None:
    config = config_of(name)
    assert config.schedule.epochs * (ADE20K // config.batch.size) == pytest.approx(updates, rel=0.01)
    assert (config.data.size, config.augment.scale) == (512, (0.5, 2.0))


@pytest.mark.parametrize(
    ("name", "epochs", "steps"),
    [
        ("mask_rcnn", 12, (8, 11)),
        ("retinanet", 12, (8, 11)),
        ("mask_rcnn_3x", 36, (27, 33)),
        ("cascade_mask_rcnn", 36, (27, 33)),
    ],
)
def test_schedules_on_coco(name: str, epochs: int, steps: tuple[int, int]) -> None:
    config = config_of(name)
    assert (config.schedule.epochs, config.schedule.milestones) == (epochs, steps)
    assert (config.data.short, config.data.long, config.batch.size) == (800, 1333, 16)
    assert config.schedule.warmup_epochs * (COCO // 16) == pytest.approx(500, rel=0.05)
    assert (config.augment.resize == "multiscale") == (epochs == 36)
