"""Every published model: its size, its cost and how timm describes it."""

from functools import cache
from typing import Any

import pytest
import timm
from timm.data import (
    IMAGENET_DEFAULT_MEAN,
    IMAGENET_DEFAULT_STD,
    IMAGENET_INCEPTION_MEAN,
    IMAGENET_INCEPTION_STD,
    resolve_model_data_config,
)
from torch import nn

from sightline.bench import Cost, measure_cost
from sightline.models import VARIANTS

NAMES = list(VARIANTS)
LIKE_SOFT = [name for name in NAMES if name.startswith("soft_norm") and name != "soft_norm_tiny"]
PRINTED_DIGITS = {"soft_small": 1, "soft_norm_small": 1}  # two for all others


@cache
def build(name: str) -> nn.Module:
    return timm.create_model(name, device="meta")


@cache
def cost(name: str) -> Cost:
    for core in soft_cores(name):
        core.iterations = 1  # to trace; `newton_steps` is subtracted, whatever their number
    return measure_cost(build(name), (3, VARIANTS[name].size, VARIANTS[name].size))


def soft_cores(name: str) -> list[Any]:
    """The cores of SOFT in a model: those of the first three stages."""
    if VARIANTS[name].cls.family != "soft":
        return []
    return [block.attn.core for stage in build(name).stages[:3] for block in stage.blocks]  # type: ignore[union-attr]


def newton_steps(name: str) -> int:
    """Multiply-adds of the matrix inverses of SOFT, which its published figures leave out.

    Two products of m x m matrices in each step, in every head of the first three stages, with m = 49 landmarks: a
    224 px image has one for every 32 x 32 pixels.
    """
    return sum(core.num_heads * core.iterations for core in soft_cores(name)) * 2 * 49**3


def test_the_zoo_is_complete() -> None:
    assert len(NAMES) == 27
    assert set(timm.list_models("inline_*") + timm.list_models("soft_*")) == set(NAMES)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_the_published_number(name: str) -> None:
    millions = sum(p.numel() for p in build(name).parameters()) / 1e6
    assert round(millions, PRINTED_DIGITS.get(name, 2)) == VARIANTS[name].params


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if VARIANTS[name].flops and name not in LIKE_SOFT])
def test_flops_are_the_published_number(name: str) -> None:
    published = VARIANTS[name].flops
    assert published is not None
    assert (cost(name).macs - newton_steps(name)) / 1e9 == pytest.approx(published, rel=0.03)


@pytest.mark.parametrize("name", LIKE_SOFT)
def test_soft_norm_is_soft_with_another_inverse(name: str) -> None:
    """Their FLOPs are those of SOFT, published with the same number."""
    norm, soft = VARIANTS[name], VARIANTS[name.replace("soft_norm", "soft")]
    assert {**soft.args, "attention": norm.args["attention"]} == norm.args
    assert (norm.flops, norm.params, norm.size) == (soft.flops, soft.params, soft.size)


def test_only_the_unpublished_cost_is_missing() -> None:
    assert [name for name in NAMES if VARIANTS[name].flops is None] == ["inline_swin_base_384"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "depths"), [("inline_deit_tiny", 1), ("inline_pvt_tiny", (1, 1, 1, 1))])
def test_cost_of_inline_is_linear_in_the_number_of_pixels(name: str, depths: Any) -> None:
    def growth(attention: str) -> float:
        model = timm.create_model(name, attention=attention, depths=depths, num_classes=0, device="meta")
        return measure_cost(model, (3, 448, 448)).macs / measure_cost(model, (3, 224, 224)).macs

    # What does not grow is the class token and the weights of the residual.
    assert growth("inline") == pytest.approx(4, rel=5e-3)
    assert growth("softmax") > 4.2


@pytest.mark.parametrize("name", NAMES)
def test_default_cfg(name: str) -> None:
    model, size = build(name), VARIANTS[name].size
    cfg = model.default_cfg
    assert cfg["input_size"] == (3, size, size)
    assert cfg["num_classes"] == model.num_classes == 1000
    assert cfg["interpolation"] == "bicubic"
    vit = name == "inline_vit_tiny"
    assert cfg["mean"] == (IMAGENET_INCEPTION_MEAN if vit else IMAGENET_DEFAULT_MEAN)
    assert cfg["std"] == (IMAGENET_INCEPTION_STD if vit else IMAGENET_DEFAULT_STD)
    assert not cfg.get("fixed_input_size")
    for layer in (cfg["classifier"], cfg["first_conv"]):
        assert f"{layer}.weight" in model.state_dict()
    assert model.state_dict()[f"{cfg['first_conv']}.weight"].shape[1] == 3
    assert model.get_classifier() is model.get_submodule(cfg["classifier"])


@pytest.mark.parametrize("name", NAMES)
def test_data_config(name: str) -> None:
    config = resolve_model_data_config(build(name))
    assert config["input_size"] == (3, VARIANTS[name].size, VARIANTS[name].size)
    assert (config["interpolation"], config["crop_pct"]) == ("bicubic", VARIANTS[name].crop_pct)
