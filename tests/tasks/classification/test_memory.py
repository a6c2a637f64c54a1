"""Preloaded data: the same batches wherever an epoch is entered, by few kernels, without waiting for the device."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.utils._python_dispatch import TorchDispatchMode

from sightline.data.order import Placement
from sightline.engine.settings import configure as resolve
from sightline.engine.settings import load_recipe
from sightline.tasks.classification import loaders as feeds
from sightline.tasks.classification.config import Augment, Data
from sightline.tasks.classification.task import Classification
from tests.engine.tiny import RECIPE, make_images

VIEWS = {"view", "slice", "select", "unbind", "unsqueeze", "expand", "split", "detach", "t", "permute", "transpose"}


class Counted(TorchDispatchMode):
    """Counts the operations that a GPU would launch kernels for."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.__name__.split(".")[0]
        self.calls[name] += name not in VIEWS
        return function(*args, **(kwargs or {}))


def task(folder: Path, augment: Augment, batch: int, parts: int = 1, **place: int) -> Classification:
    config = resolve(RECIPE)
    data = Data(path=str(folder), size=16, crop_pct=1.0, workers=0, preload=True)
    where = Placement(torch.device("cpu"), batch, parts, **place)
    return Classification(replace(config, data=data, augment=augment), where)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_images(tmp_path_factory.mktemp("memory"), train=32)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("ahead", [8, 24, 40, 1000])
def test_resuming_anywhere_gives_the_same_batches(
    folder: Path, ahead: int, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "AHEAD", ahead)
    augment = replace(resolve(load_recipe("imagenette_80")).augment, mix_mode="pair")
    made = task(folder, augment, 8 * parts, parts)
    whole = list(made.batches(3, 0))
    assert len(whole) == 96 // 8
    for start in range(made.order.steps):
        rest = list(made.batches(3, start))
        assert len(rest) == len(whole) - start * parts
        for one, other in zip(rest, whole[start * parts :], strict=True):
            assert torch.equal(one.images, other.images)
            assert torch.equal(one.targets, other.targets)


def test_how_many_are_augmented_at_once_changes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    augment = resolve(load_recipe("imagenette_80")).augment
    made = task(folder, augment, 8)
    together = list(made.batches(0, 0))
    monkeypatch.setattr(feeds, "AHEAD", 1)
    for one, other in zip(made.batches(0, 0), together, strict=True):
        torch.testing.assert_close(one.images, other.images)
        assert torch.equal(one.targets, other.targets)


def test_images_grow_in_equal_parts_of_the_epochs(folder: Path) -> None:
    made = task(folder, Augment(progressive=(0.5, 0.75, 1.0), erase=0.5, mixup=0.2), 8)
    made.epochs = 7
    sides = [next(made.batches(epoch, 0)).images.shape[-2:] for epoch in range(8)]  # the last one cools down
    assert [side[0] for side in sides] == [8, 8, 8, 12, 12, 16, 16, 16]
    assert all(height == width for height, width in sides)


def test_a_smaller_image_is_the_same_image(folder: Path) -> None:
    whole, small = (task(folder, Augment(progressive=shares), 8) for shares in ((), (0.5,)))
    image, smaller = (next(made.batches(0, 0)).images for made in (whole, small))
    torch.testing.assert_close(smaller.mean((2, 3)), image.mean((2, 3)), rtol=0, atol=0.05)


@pytest.mark.parametrize(
    ("most", "loader"), [(1 << 30, feeds.DeviceLoader), (int(111 * 3 * 16 * 16 * 1.5**2) - 1, feeds.WorkerLoader)]
)
def test_few_images_are_preloaded(folder: Path, most: int, loader: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """96 to train on and 15 to evaluate, of 3 x 24 x 24 bytes at most."""
    monkeypatch.setattr("sightline.tasks.classification.task.MOST_PRELOADED", most)
    data = Data(path=str(folder), size=16, workers=0, preload="auto")
    made = Classification(replace(resolve(RECIPE), data=data), Placement(torch.device("cpu"), 8))
    assert isinstance(made.loader, loader)


def photograph(path: Path, width: int, height: int) -> None:
    """Red, with a green left and a blue right sixth, or top and bottom if it is upright."""
    image = Image.new("RGB", (width, height), "red")
    if width > height:
        image.paste("lime", (0, 0, width // 6, height))
        image.paste("blue", (width - width // 6, 0, width, height))
    else:
        image.paste("lime", (0, 0, width, height // 6))
        image.paste("blue", (0, height - height // 6, width, height))
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)


@pytest.mark.parametrize(("whole", "seen"), [(True, {0, 1, 2}), (False, {0})])
def test_crops_come_from_whole_images(tmp_path: Path, whole: bool, seen: set[int]) -> None:
    for number, (width, height) in enumerate([(48, 32), (32, 48), (90, 60), (320, 10)]):
        for split in ("train", "val"):
            photograph(tmp_path / split / str(number) / "a.png", width, height)
    data = Data(path=str(tmp_path), size=16, crop_pct=1.0, workers=0, preload=True, preload_whole=whole)
    config = replace(resolve(RECIPE), data=data, augment=Augment(scale=(0.5, 1.0)))
    loader = Classification(config, Placement(torch.device("cpu"), 4)).loader
    assert isinstance(loader, feeds.DeviceLoader)
    longest = 24 if whole else 16
    assert loader.train.images.shape == (4, 3, longest, longest)
    torch.testing.assert_close(loader.train.shares[0], torch.tensor([16 / longest, 1.0]))
    assert loader.val.images.shape == (4, 3, 16, 16)
    found: set[int] = set()
    for epoch in range(4):
        for batch in loader.micro_batches(epoch, 0):
            found |= set(batch.images[:3].argmax(1).flatten().tolist())
    assert found == seen


@pytest.mark.parametrize(("recipe", "most"), [("imagenette", 80), ("imagenette_80", 140)])
def test_a_batch_takes_few_kernels_and_never_waits(
    folder: Path, recipe: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "AHEAD", 32)  # four batches, as 256 are of the recipe's 64
    made = task(folder, resolve(load_recipe(recipe)).augment, 8)
    with Counted() as counted:
        batches = list(made.batches(0, 0))
    assert counted.calls.total() / len(batches) < most
    assert not counted.calls.keys() & {"_local_scalar_dense", "nonzero", "is_nonzero", "equal"}
