"""Images and masks stay together, whatever happens to them."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from sightline.tasks.dense.transforms import EvalTransform, InferenceTransform, fitted, resize_masks
from sightline.tasks.segmentation.config import Augment, Data
from sightline.tasks.segmentation.data import IGNORE, open_split
from sightline.tasks.segmentation.transforms import TrainTransform, recolour
from tests.tasks.segmentation.tiny import COLOURS, make_data, scene


def seen_as(pixels: torch.Tensor) -> torch.Tensor:
    """The class whose colour a pixel is nearest to."""
    distance = (pixels.permute(1, 2, 0)[:, :, None].float() - torch.from_numpy(COLOURS).float()).square().sum(-1)
    return distance.argmin(-1)


@pytest.mark.parametrize("seed", range(6))
def test_the_mask_follows_the_image(seed: int) -> None:
    image, mask = scene(seed, 70, 90)
    transform = TrainTransform(Data(size=(64, 80)), Augment(colour=False))
    pixels, classes = transform(Image.fromarray(image), torch.from_numpy(mask).short(), random.Random(seed))
    assert pixels.shape == (3, 64, 80)
    assert classes.shape == (64, 80)
    inside = classes != IGNORE
    agree = (seen_as(pixels) == classes)[inside].float().mean()
    assert inside.any()
    assert agree > 0.95, agree  # edges are blurred in the image only


def test_the_same_seed_gives_the_same_crop() -> None:
    image, mask = scene(0, 100, 120)
    transform = TrainTransform(Data(size=64), Augment())
    first, second, other = (
        transform(Image.fromarray(image), torch.from_numpy(mask).short(), random.Random(s)) for s in (1, 1, 2)
    )
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not torch.equal(first[0], other[0])


def test_small_images_are_filled() -> None:
    image, mask = scene(0)
    data = Data(size=96, mean=(1.0, 0.0, 0.0))
    transform = TrainTransform(data, Augment(scale=(1.0, 1.0), hflip=0.0, colour=False))
    pixels, classes = transform(Image.fromarray(image), torch.from_numpy(mask).short(), random.Random(0))
    assert torch.equal(pixels[:, :64, :64].permute(1, 2, 0), torch.from_numpy(image))
    assert (classes[64:] == IGNORE).all()
    assert (classes[:, 64:] == IGNORE).all()
    assert pixels[:, 80, 80].tolist() == [255, 0, 0]


def test_the_mirror_image() -> None:
    image, mask = scene(0)
    transform = TrainTransform(Data(size=64), Augment(scale=(1.0, 1.0), hflip=1.0, colour=False))
    pixels, classes = transform(Image.fromarray(image), torch.from_numpy(mask).short(), random.Random(0))
    assert np.array_equal(pixels.permute(1, 2, 0).numpy(), image[:, ::-1])
    assert np.array_equal(classes.numpy(), mask[:, ::-1])


def test_a_crop_is_not_all_of_one_class() -> None:
    mask = torch.zeros(64, 640, dtype=torch.int16)
    mask[:, 600:] = 1
    image = Image.new("RGB", (640, 64))
    transform = TrainTransform(Data(size=64), Augment(scale=(1.0, 1.0), most_of_one=0.75))
    plain = TrainTransform(Data(size=64), Augment(scale=(1.0, 1.0), most_of_one=1.0))
    mixed = [sum(len(t(image, mask, random.Random(s))[1].unique()) > 1 for s in range(40)) for t in (transform, plain)]
    assert mixed[0] > 2 * mixed[1]


@pytest.mark.parametrize(
    ("size", "short", "long", "expected"),
    [((100, 200), None, 50, (100, 200)), ((100, 200), 50, 999, (50, 100)), ((100, 1000), 50, 400, (40, 400))],
)
def test_fitted(size: tuple[int, int], short: int | None, long: int, expected: tuple[int, int]) -> None:
    assert fitted(*size, short, long) == expected


def test_masks_are_never_mixed() -> None:
    mask = torch.tensor([[[0, 200], [IGNORE, 7]]], dtype=torch.int16)
    resized = resize_masks(mask, (33, 47))
    assert resized.shape == (1, 33, 47)
    assert set(resized.flatten().tolist()) == {0, 200, IGNORE, 7}


def test_evaluation_leaves_the_mask_alone(tmp_path: Path) -> None:
    split = open_split(Data(path=str(make_data(tmp_path, height=100, width=60))), "val")
    image, classes = split.read_eval(0)
    assert EvalTransform(30, 40)(image).shape == (3, 40, 24)
    assert classes.shape == (100, 60)


def test_colours_change_and_stay_colours() -> None:
    image = Image.fromarray(scene(0)[0])
    changed = [recolour(image, random.Random(seed)) for seed in range(8)]
    assert all(c.mode == "RGB" and c.size == image.size for c in changed)
    assert sum(c.tobytes() != image.tobytes() for c in changed) >= 6


@pytest.mark.parametrize("scale", [0.6, 1.0, 1.7])
def test_a_crop_is_a_window_of_the_scaled_image(scale: float) -> None:
    image, mask = scene(1, 90, 130)
    transform = TrainTransform(
        Data(size=(48, 64)), Augment(scale=(scale, scale), hflip=0.0, colour=False, most_of_one=1.0)
    )
    size = (round(90 * scale), round(130 * scale))
    whole = torch.from_numpy(np.array(Image.fromarray(image).resize(size[::-1], Image.Resampling.BILINEAR))).int()
    (classes,) = resize_masks(torch.from_numpy(mask).short()[None], size)
    for seed in range(4):
        rng = random.Random(seed)
        rng.uniform(scale, scale)
        top, left = rng.randint(0, size[0] - 48), rng.randint(0, size[1] - 64)
        found = transform(Image.fromarray(image), torch.from_numpy(mask).short(), random.Random(seed))
        window = whole[top : top + 48, left : left + 64].permute(2, 0, 1)
        assert (found[0].int() - window).abs().max() <= 2
        assert torch.equal(found[1], classes[top : top + 48, left : left + 64])


def test_a_large_photo_is_predicted_at_a_smaller_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sightline.tasks.dense.transforms.MAX_INPUT", 600)
    photo, usual = Image.new("RGB", (80, 30)), ((0.5,) * 3, (0.5,) * 3)
    assert InferenceTransform(None, 9999, *usual)(photo).shape == (3, 15, 40)
    assert InferenceTransform(60, 9999, *usual)(photo).shape == (3, 60, 160)  # as asked for
