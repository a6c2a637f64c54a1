"""One pass over a split: every image once, in order, as training's own evaluation sees it."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from sightline.data.images import ImageError
from sightline.tasks.card import ModelCard
from sightline.tasks.classification.config import Data
from sightline.tasks.classification.data import Split, open_split
from sightline.tasks.classification.transforms import eval_transform
from sightline.tasks.preprocess import make_transform, one_pass

CARD = ModelCard("", input_size=(3, 24, 24))


@pytest.fixture
def split(tmp_path: Path) -> Split:
    for name in "ab":
        (tmp_path / "val" / name).mkdir(parents=True)
        for i in range(5):
            pixels = np.random.default_rng(i).integers(0, 256, (30, 40, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "val" / name / f"{i}.png")
    return open_split(Data(path=str(tmp_path)), "val")


@pytest.mark.parametrize("workers", [0, 2])
def test_every_image_once_and_in_order(split: Split, workers: int) -> None:
    batches = list(one_pass(split, CARD, 4, workers))
    assert [len(places) for _, places in batches] == [4, 4, 2]
    assert torch.cat([places for _, places in batches]).tolist() == list(range(10))
    expected = make_transform(CARD)(split.image(7))
    torch.testing.assert_close(torch.cat([images for images, _ in batches])[7], expected)


@pytest.mark.parametrize("workers", [0, 2])
def test_broken_images_are_named(split: Split, tmp_path: Path, workers: int) -> None:
    (tmp_path / "val" / "a" / "3.png").write_bytes(b"words")
    with pytest.raises(ImageError, match=r"3\.png"):
        list(one_pass(split, CARD, 4, workers))
    broken: list[str] = []
    batches = list(one_pass(split, CARD, 4, workers, broken.append))
    assert sum(len(places) for _, places in batches) == 9
    assert len(broken) == 1


def test_a_batch_of_broken_images_is_none(split: Split, tmp_path: Path) -> None:
    for i in (0, 1):
        (tmp_path / "val" / "a" / f"{i}.png").write_bytes(b"words")
    batches = list(one_pass(split, CARD, 2, 0, lambda _: None))
    assert [len(places) for _, places in batches] == [2, 2, 2, 2]


@pytest.mark.parametrize("size", [(24, 24), (28, 20)])
@pytest.mark.parametrize("crop", [1.0, 0.875])
def test_training_evaluates_the_same_pixels(split: Split, size: tuple[int, int], crop: float) -> None:
    card = ModelCard("", input_size=(3, *size), crop_pct=crop)
    pixels = torch.from_numpy(np.asarray(eval_transform(card)(split.image(0)))).float() / 255
    mean, std = (torch.tensor(values)[:, None, None] for values in (card.mean, card.std))
    torch.testing.assert_close((pixels - mean) / std, make_transform(card)(split.image(0)))
