"""Boxes, masks and images stay together, whatever happens to them."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from sightline.tasks.dense.transforms import EvalTransform
from sightline.tasks.detection.config import Augment, Data
from sightline.tasks.detection.data import Split, open_split
from sightline.tasks.detection.transforms import TrainTransform, crop, resize
from tests.tasks.detection.tiny import COLOURS, make_data


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Split:
    root: Path = tmp_path_factory.mktemp("coco")
    return open_split(Data(path=str(make_data(root / "data", 3))), "train", masks=True)


def assert_together(pixels: torch.Tensor, target: dict[str, Any], categories: tuple[int, ...]) -> None:
    """Masks lie on the colour of their class, and boxes around their masks."""
    height, width = pixels.shape[-2:]
    assert target["masks"].shape[1:] == (height, width)
    for box, label, mask in zip(target["boxes"], target["labels"], target["masks"], strict=True):
        colour = torch.tensor(COLOURS[categories[label - 1]]).view(3, 1, 1)
        same = (pixels.int() - colour).abs().amax(0) < 60
        assert (same & mask.bool()).sum() > 0.8 * mask.sum()
        down, across = torch.where(mask)
        edges = torch.stack([across.min(), down.min(), across.max() + 1, down.max() + 1])
        assert (edges - box).abs().max() <= 2, (edges, box)


@pytest.mark.parametrize("resize", ["fixed", "multiscale", "jitter"])
@pytest.mark.parametrize("seed", range(4))
def test_everything_follows_the_image(split: Split, resize: str, seed: int) -> None:
    augment = Augment(resize=resize, sizes=(64, 80, 150), scale=(0.4, 2.0), crop=(128, 160))  # type: ignore[arg-type]
    transform = TrainTransform(Data(short=120, long=150), augment)
    index = seed % len(split)
    pixels, target = transform(split.image(index), split.target(index), random.Random(seed))
    assert_together(pixels, target, split.categories)
    if resize == "jitter":
        assert pixels.shape == (3, 128, 160)
    else:
        assert max(pixels.shape[1:]) <= 150


def test_the_mirror_image(split: Split) -> None:
    transform = TrainTransform(Data(short=96, long=200), Augment(hflip=1.0))
    target = split.target(0)
    pixels, mirrored = transform(split.image(0), target, random.Random(0))
    assert torch.equal(pixels, EvalTransform(None, 1)(split.image(0)).flip(-1))
    assert torch.equal(mirrored["boxes"][:, 0], 112 - target["boxes"][:, 2])
    assert (mirrored["boxes"][:, 2] > mirrored["boxes"][:, 0]).all()


def test_what_a_crop_leaves_out_is_gone(split: Split) -> None:
    target = split.target(0)
    left, top, right, bottom = (int(v) for v in target["boxes"][0])
    pixels, rest = crop(*resize(split.image(0), target, (96, 112)), 0, right + 1, (96, 112))
    assert rest["labels"].tolist() == [2]
    assert pixels.shape == (3, 96, 112)
    assert (pixels[:, :, 112 - right - 1 :] == 0).all()
    assert top < bottom
    assert left < right


def test_without_objects(split: Split) -> None:
    empty = {
        "boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.long),
        "masks": torch.zeros(0, 96, 112, dtype=torch.uint8),
    }  # fmt: skip
    for way in ("fixed", "jitter"):
        transform = TrainTransform(Data(short=64, long=100), Augment(resize=way, crop=64))  # type: ignore[arg-type]
        _, target = transform(split.image(0), empty, random.Random(1))
        assert len(target["boxes"]) == len(target["masks"]) == 0


def test_evaluation_size() -> None:
    assert EvalTransform(800, 1333)(Image.new("RGB", (640, 480))).shape == (3, 800, 1067)
    assert EvalTransform(800, 1333)(Image.new("RGB", (1000, 300))).shape == (3, 400, 1333)
