"""Augmentation of batches: geometry, colours, mixing and erasing do what they say, for any number of processes."""

import random

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data.auto_augment import rand_augment_transform

from sightline.data.order import Order, Placement
from sightline.tasks.classification import colour
from sightline.tasks.classification.augment import COLUMNS, GEOMETRIC, BatchAugment, RandAugment
from sightline.tasks.classification.config import Augment
from sightline.tasks.classification.mix import erase, mix
from sightline.tasks.classification.transforms import _keep_a_bit

CPU = torch.device("cpu")


def images(count: int = 6, side: int = 12) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8, generator=generator)


def augmented(pixels: torch.Tensor, uniform: torch.Tensor, **options: object) -> torch.Tensor:
    change = BatchAugment(Augment(**options), (12, 12), (0.5, 0.5, 0.5), CPU)  # type: ignore[arg-type]
    return change(pixels, torch.ones(len(pixels), 2), uniform)


def test_nothing_random_changes_nothing() -> None:
    out = augmented(images(), torch.rand(6, COLUMNS), crop="center", hflip=0.0)
    torch.testing.assert_close(out, images() / 255)


def test_flip_and_padded_crop() -> None:
    uniform = torch.full((6, COLUMNS), 0.5)
    out = augmented(images(), uniform, crop="center", hflip=1.0)
    torch.testing.assert_close(out, images().flip(3) / 255)
    uniform[:, 2] = 1.0  # the crop lies lowest: an eighth of the side comes from outside
    out = augmented(images(side=16), uniform, crop="padded", hflip=0.0)
    assert out.shape == (6, 3, 12, 12)
    torch.testing.assert_close(out[:, :, -1], torch.full((6, 3, 12), 0.5))


def test_resized_crop_is_a_part_of_the_image() -> None:
    ramp = torch.arange(12, dtype=torch.uint8).mul(20).expand(4, 3, 12, 12).contiguous()
    out = augmented(ramp, torch.rand(4, COLUMNS), scale=(0.25, 0.25), ratio=(1.0, 1.0), hflip=0.0)
    spans = (out[:, 0, 0, -1] - out[:, 0, 0, 0]) * 255
    assert ((spans > 60) & (spans < 130)).all()  # half of the width, of 220


def test_crops_stay_in_images_that_are_smaller_than_the_tensor() -> None:
    canvas = torch.zeros(64, 3, 30, 20, dtype=torch.uint8)
    canvas[:, :, :15, :18] = 255
    canvas[:, :, 15:] = canvas[:, :, :, 18:] = 128  # the fill
    change = BatchAugment(Augment(scale=(0.1, 1.0)), (12, 12), (128 / 255,) * 3, CPU)
    out = change(canvas, torch.tensor([15 / 30, 18 / 20]).expand(64, 2), torch.rand(64, COLUMNS))
    inside = out[:, :, 1:-1, 1:-1]
    torch.testing.assert_close(inside, torch.ones_like(inside))


def test_uniform_numbers_decide_everything() -> None:
    options = {"auto": "rand-m9-mstd0.5-inc1", "scale": (0.3, 1.0)}
    uniform = torch.rand(6, COLUMNS)
    both = augmented(images(), uniform, **options)
    torch.testing.assert_close(augmented(images()[2:4], uniform[2:4], **options), both[2:4])
    assert not torch.equal(augmented(images(), torch.rand(6, COLUMNS), **options), both)


def test_each_image_has_its_own_operation() -> None:
    pixels = images(len(colour.OPERATIONS) + 1) / 255
    numbers = torch.arange(-1, len(colour.OPERATIONS))
    out = colour.apply(pixels, numbers, torch.full((len(numbers),), 0.9))
    torch.testing.assert_close(out[0], pixels[0])
    for i, operation in enumerate(colour.OPERATIONS, 1):
        alone = operation(pixels[i : i + 1], torch.full((1, 1, 1, 1), 0.9)).clamp(0, 1)
        torch.testing.assert_close(out[i : i + 1], alone)
        assert not torch.equal(out[i], pixels[i])


def test_notation() -> None:
    assert RandAugment.parse("rand-m7-mstd0.5-inc1-n3-p0.8") == RandAugment(7, 0.5, 3, 0.8)
    for wrong in ("augmix-m3", "rand-m9-w0", "rand-n9"):
        with pytest.raises(ValueError, match=r"not available with data\.preload"):
            RandAugment.parse(wrong)
    assert len(GEOMETRIC) + len(colour.OPERATIONS) == 15


@pytest.mark.parametrize("mode", ["batch", "pair", "elem"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_mixing_does_not_depend_on_the_number_of_processes(mode: str, ranks: int) -> None:
    pixels, targets = torch.randn(16, 3, 8, 8), torch.arange(16) % 5
    augment = Augment(mixup=0.8, cutmix=1.0, mix_mode=mode, erase=0.7, erase_mode="const")  # type: ignore[arg-type]

    def mixed(order: Order) -> tuple[torch.Tensor, torch.Tensor]:
        slots, rng = order.slots(), np.random.default_rng(4)
        out, soft = mix(pixels[slots], targets[slots], 5, augment, rng, order)
        return erase(out, augment, rng, order, 0), soft

    whole, soft = mixed(Placement(CPU, 16).order(16))
    for rank in range(ranks):
        order = Placement(CPU, 16, ranks=ranks, rank=rank).order(16)
        share, labels = mixed(order)
        torch.testing.assert_close(share, whole[order.slots()])
        torch.testing.assert_close(labels, soft[order.slots()])
    torch.testing.assert_close(soft.sum(1), torch.ones(16))
    assert not torch.equal(whole, pixels)


def test_cutmix_labels_are_the_shares_of_the_area() -> None:
    pixels = torch.arange(8.0).view(8, 1, 1, 1).expand(8, 1, 10, 10)
    slots = torch.arange(8)
    augment, rng = Augment(cutmix=1.0, mix_mode="elem"), np.random.default_rng(0)
    out, soft = mix(pixels, torch.arange(8), 8, augment, rng, Placement(CPU, 8).order(8))
    own = (out == pixels).float().mean((1, 2, 3))
    torch.testing.assert_close(soft[slots, slots], own)
    assert 0 < own.mean() < 1


def test_erasing() -> None:
    ones, order = torch.ones(200, 2, 20, 20), Placement(CPU, 200).order(200)
    out = erase(ones, Augment(erase=0.25, erase_mode="const"), np.random.default_rng(0), order, 0)
    share = (out == 0).float().mean((1, 2, 3))
    assert 0.15 < (share > 0).float().mean() < 0.35
    assert share.max() < 0.45
    for mode, values in (("pixel", 100), ("rand", 1)):
        out = erase(ones, Augment(erase=1.0, erase_mode=mode), np.random.default_rng(0), order, 0)  # type: ignore[arg-type]
        large = int((out[:, 0] != 1).sum((1, 2)).argmax())
        assert len(out[large, 0].unique()) - 1 >= values if mode == "pixel" else len(out[large, 0].unique()) == 2


def test_policies_of_the_recipes_never_fail() -> None:
    _keep_a_bit()
    image = Image.effect_noise((8, 8), 60).convert("RGB")
    policy = rand_augment_transform("rand-m9-mstd0.5-inc1", {"translate_const": 2, "img_mean": (0, 0, 0)})
    for seed in range(4000):
        random.seed(seed)
        np.random.seed(seed)
        assert policy(image).size == (8, 8)
