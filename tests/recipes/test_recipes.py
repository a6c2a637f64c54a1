"""Every packaged recipe: it can be read, its model can be built, and its numbers are the published ones."""

import re
from importlib import resources
from typing import Any

import pytest

from sightline.engine.settings import configure as resolve
from sightline.engine.settings import load_recipe, recipe_names, to_dict
from sightline.models.weights.identify import build_empty
from sightline.models.zoo import VARIANTS

IMAGENETTE = ("imagenette", "imagenette_80", "imagenette_deit", "imagenette_deit_80", "imagenette_pyramid")
SMALL = ("quick", "photos", "photos_80", *IMAGENETTE, "cifar10", "finetune")
TUNED_384 = ("inline_swin_base_384", "inline_cswin_base_384")

# The published training, once: what holds for all, then what replaces it by family, then by model.
EVERY: dict[str, Any] = {
    "optim.name": "adamw",
    "optim.betas": [0.9, 0.999],
    "optim.eps": 1e-8,
    "optim.lr": 5e-4,
    "optim.lr_batch": 512,
    "optim.weight_decay": 0.05,
    "optim.clip": 5.0,
    "schedule.name": "cosine",
    "schedule.epochs": 300,
    "schedule.cooldown_epochs": 0,
    "loss.name": "cross_entropy",
    "loss.smoothing": 0.1,
    "augment.crop": "resized",
    "augment.auto": "rand-m9-mstd0.5-inc1",
    "augment.color_jitter": 0.4,
    "augment.erase": 0.25,
    "augment.erase_mode": "pixel",
    "augment.mixup": 0.8,
    "augment.cutmix": 1.0,
    "augment.repeats": 1,
    "data.interpolation": "bicubic",
    "ema.decay": 0.0,
    "run.precision": "bf16",
}
FAMILY: dict[str, dict[str, Any]] = {
    "inline_deit": {
        "schedule.warmup_epochs": 20,
        "schedule.warmup_lr": 5e-7,
        "schedule.min_lr": 5e-6,
        "model.drop_path": 0.1,
    },
    "inline_pvt": {
        "schedule.warmup_epochs": 5,
        "schedule.cooldown_epochs": 10,
        "schedule.warmup_lr": 1e-6,
        "schedule.min_lr": 1e-5,
        "optim.clip": None,
    },
    "inline_swin": {"schedule.warmup_epochs": 20, "schedule.warmup_lr": 5e-7, "schedule.min_lr": 5e-6},
    "inline_cswin": {
        "schedule.warmup_epochs": 20,
        "schedule.cooldown_epochs": 10,
        "optim.clip": None,
        "ema.decay": 0.9996,
        "ema.batch": 4096,
    },
    "soft": {
        "optim.lr": 1e-3,
        "optim.lr_batch": 1024,
        "optim.clip": 1.0,
        "schedule.warmup_epochs": 10,
        "schedule.warmup_lr": 1e-6,
        "schedule.min_lr": 5e-5,
        "ema.decay": 0.99996,
        "ema.batch": None,
        "model.drop_path": 0.1,
    },
}
MODEL: dict[str, dict[str, Any]] = {
    "inline_pvt_tiny": {"model.drop_path": 0.1},
    "inline_pvt_small": {"model.drop_path": 0.1},
    "inline_pvt_medium": {"model.drop_path": 0.3, "optim.clip": 1.0},
    "inline_pvt_large": {"model.drop_path": 0.3, "optim.clip": 1.0},
    "inline_swin_tiny": {"model.drop_path": 0.2},
    "inline_swin_small": {"model.drop_path": 0.3},
    "inline_swin_base": {"model.drop_path": 0.5},
    "inline_swin_base_384": {
        "schedule.epochs": 30,
        "schedule.warmup_epochs": 5,
        "schedule.warmup_lr": 2e-8,
        "schedule.min_lr": 2e-7,
        "optim.lr": 2e-5,
        "optim.weight_decay": 1e-8,
        "data.crop_pct": 1.0,
    },
    "inline_cswin_tiny": {"model.drop_path": 0.2},
    "inline_cswin_small": {"model.drop_path": 0.4},
    "inline_cswin_base": {"model.drop_path": 0.5, "optim.weight_decay": 0.1},
    "inline_cswin_base_384": {
        "schedule.epochs": 20,
        "schedule.warmup_epochs": 0,
        "schedule.cooldown_epochs": 0,
        "schedule.min_lr": 5e-7,
        "optim.lr": 5e-6,
        "optim.lr_batch": None,
        "optim.weight_decay": 1e-8,
        "model.drop_path": 0.7,
    },
    "medium": {"optim.lr": 3.5e-4, "optim.lr_batch": 256, "batch.size": 256},
    "large": {"optim.lr": 3.3e-4, "optim.lr_batch": 256, "batch.size": 256},
    "huge": {"optim.lr": 2.7e-4, "optim.lr_batch": 256, "batch.size": 256},
}


def config_of(name: str) -> Any:
    return resolve(load_recipe(name))


def published(name: str) -> dict[str, Any]:
    family = "soft" if name.startswith("soft") else "_".join(name.split("_")[:2])
    size = name.split("_")[-1] if family == "soft" else name
    return {**EVERY, **FAMILY[family], **MODEL.get(size, {})}


def opening(name: str) -> str:
    """The comment that a recipe begins with."""
    text = (resources.files("sightline") / "recipes" / f"{name}.yaml").read_text(encoding="utf-8")
    return "\n".join(re.findall(r"\A(?:#.*\n)+", text))


CLASSIFIERS = [name for name in recipe_names() if config_of(name).task == "classification"]


OURS = ("inline_vit_tiny", "inline_conv_small")  # made by `sightline.linearize`, and for small data
PUBLISHED = [name for name in VARIANTS if name not in OURS]


def test_every_published_model_has_a_recipe() -> None:
    assert set(PUBLISHED) <= set(recipe_names())
    assert set(recipe_names()) >= {*SMALL, "imagenet"}


@pytest.mark.parametrize("name", PUBLISHED)
def test_numbers_are_the_published_ones(name: str) -> None:
    values = to_dict(config_of(name))
    expected = published(name)
    found = {key: values[key.partition(".")[0]][key.partition(".")[2]] for key in expected}
    assert found == expected
    assert values["model"]["name"] == name
    assert values["model"]["args"] == {}


@pytest.mark.parametrize("name", PUBLISHED)
def test_opens_with_accuracy_hardware_and_command(name: str) -> None:
    text, variant = opening(name), VARIANTS[name]
    assert f"{variant.top1} % top-1" in text if variant.top1 else "not published" in text
    assert f"at {variant.size} px" in text
    assert f"{variant.params:.2f} M" in text
    assert "8 GPUs" in text
    assert f"sightline train --config {name} --data IMAGENET" in text
    assert f"{config_of(name).schedule.epochs} epochs" in text


@pytest.mark.parametrize("name", [*SMALL, "imagenet"])
def test_other_recipes_open_with_a_command(name: str) -> None:
    assert re.search(r"^# +sightline train", opening(name), re.MULTILINE)


@pytest.mark.parametrize("name", TUNED_384)
def test_fine_tuning_starts_from_the_model_at_224(name: str) -> None:
    assert config_of(name).model.checkpoint == f"{name.removesuffix('_384')}.safetensors"
    assert "--model.checkpoint" in opening(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_every_recipe_builds_its_model(name: str) -> None:
    config = config_of(name)
    args = {**config.model.args, "drop_path_rate": config.model.drop_path, "num_classes": 10}
    if config.data.size is not None:
        args["img_size"] = config.data.size
    model = build_empty(config.model.name, args)
    assert model.num_classes == 10


@pytest.mark.parametrize("name", recipe_names())
def test_recipes_make_sense(name: str) -> None:
    config = config_of(name)
    assert config.schedule.warmup_epochs < config.schedule.epochs
    assert config.schedule.min_lr < config.optim.lr
    assert config.data.path is None  # nobody's path is packaged
    assert config.run.folder is None
