"""Linear models from trained softmax ones: every weight is inherited, and softmax gives the outputs of the source."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from timm.models import save_for_hf
from torch import nn

import sightline
from sightline.layers import Attention
from sightline.models.attention_error import attention_errors
from sightline.models.linearize import chosen_blocks
from sightline.util.errors import InputError

from .tiny import FAMILIES, assert_close, image, tiny
from .weights import enliven

SMALL = {"img_size": 64, "embed_dim": 32, "depth": 3, "num_heads": 2, "num_classes": 7}
KINDS: dict[str, dict[str, Any]] = {
    "vit_tiny_patch16_224": {},
    "deit_tiny_distilled_patch16_224": {},
    "deit3_small_patch16_224": {},  # layer scale, no position of the class token
    "vit_base_patch16_clip_quickgelu_224": {},  # a norm before the blocks
    "vit_base_patch16_siglip_224": {},  # attention pooling without a class token
    "vit_small_patch14_reg4_dinov2": {"img_size": 56},  # registers
    "vit_giant_patch14_dinov2": {"img_size": 56},  # gated MLPs
    "vit_medium_patch16_gap_256": {"qk_norm": True, "qkv_bias": False},  # mean pooling with its norm
    "vit_betwixt_patch16_reg4_gap_256": {"num_classes": 0},
}


def small(name: str, **arguments: Any) -> Any:
    return enliven(timm.create_model(name, **{**SMALL, **KINDS.get(name, {}), **arguments})).eval()


@pytest.mark.parametrize("name", KINDS)
@torch.no_grad()
def test_softmax_gives_the_outputs_of_timm(name: str) -> None:
    source = small(name)
    x = image(source.patch_embed.img_size[0])
    want = source(x)
    assert_close(sightline.linearize(source, "softmax")(x), want)
    kept = sightline.linearize(source, "inline", keep=3)
    assert_close(kept(x), want)
    assert_close(kept.forward_features(x), source.forward_features(x))
    student = sightline.linearize(source, "inline", keep=[0])
    assert student(x).shape == want.shape
    assert {module.core.num_heads for module in student.modules() if isinstance(module, Attention)} == {2}
    assert [block.attn.mechanism.name for block in student.blocks] == ["softmax", "inline", "inline"]
    inherited = student.inherited
    assert inherited.kept == (0,)
    merged = 7 if "distilled" in name else 0  # the biases of two classifiers are one
    assert inherited.parameters == sum(p.numel() for p in source.parameters()) - merged
    assert not inherited.left
    assert {key.split(".core.")[0] for key in inherited.new} == {"blocks.1.attn", "blocks.2.attn"}
    assert "\n" not in str(inherited)


@torch.no_grad()
def test_the_interface_of_timm(tmp_path: Path) -> None:
    source = small("vit_small_patch14_reg4_dinov2")
    student = sightline.linearize(source, "inline", keep=[2])
    x = image(42, 70)
    want = student(x)
    assert want.isfinite().all()
    assert [feature.shape for feature in student.forward_intermediates(x, [0, 2], intermediates_only=True)] == [
        (2, 32, 3, 5), (2, 32, 3, 5),
    ]  # fmt: skip
    save_for_hf(student, tmp_path / "model", safe_serialization=True)
    back = timm.create_model(f"local-dir:{tmp_path / 'model'}", pretrained=True).eval()
    assert torch.equal(back(x), want)
    assert tuple(back.pretrained_cfg["mean"]) == source.pretrained_cfg["mean"]
    args = {"img_size": 56, "patch_size": 14, "embed_dims": 32, "num_heads": 2, "depths": 3, "reg_tokens": 4}
    features = timm.create_model(
        "inline_vit_tiny", features_only=True, out_indices=(2,), attention="inline*2+softmax*1", no_embed_class=True,
        init_values=1e-5, **args,
    ).eval()  # fmt: skip
    features.load_state_dict(student.state_dict())
    assert torch.equal(features(x)[0], student.forward_intermediates(x, [2], intermediates_only=True)[0])


GAP = {"global_pool": "avg", "class_token": False, "fc_norm": True, "qk_norm": True, "qkv_bias": False}


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("vit_medium_patch16_gap_256", {**GAP, "init_values": 1e-5}),
        ("vit_base_patch16_siglip_224", {"global_pool": "map", "class_token": False}),
    ],
)
@torch.no_grad()
def test_features_without_pooling(name: str, arguments: dict[str, Any]) -> None:
    """A norm after pooling and pooling by attention are not part of feature maps."""
    student = sightline.linearize(small(name), "inline")
    arguments = {"attention": "inline", "img_size": 64, "embed_dims": 32, "num_heads": 2, "depths": 3, **arguments}
    features = timm.create_model("inline_vit_tiny", features_only=True, out_indices=(1,), **arguments).eval()
    features.load_state_dict(student.state_dict())
    x = image()
    assert torch.equal(features(x)[0], student.forward_intermediates(x, [1], intermediates_only=True)[0])


@torch.no_grad()
def test_positions_of_another_size_are_those_of_timm() -> None:
    source = small("vit_tiny_patch16_224", dynamic_img_size=True)
    x = image(48, 96)
    assert_close(sightline.linearize(source, "softmax")(x), source(x))
    other = small("vit_tiny_patch16_224")
    other.set_input_size((48, 96))
    assert_close(sightline.linearize(other, "softmax")(x), source(x))


@pytest.mark.parametrize("family", [family for family in FAMILIES if "soft" not in family])
@torch.no_grad()
def test_our_own_softmax_twins(family: str) -> None:
    twin, x = tiny(family, attention="softmax"), image()
    blocks = sum(isinstance(module, nn.Linear) and name.endswith("qkv") for name, module in twin.named_modules())
    assert_close(sightline.linearize(twin, "inline", keep=list(range(blocks)))(x), twin(x))
    student = sightline.linearize(twin, "inline")
    assert student(x).isfinite().all()
    state, own = twin.state_dict(), student.state_dict()
    shared = [key for key in own if key in state and state[key].shape == own[key].shape]
    assert all(torch.equal(state[key], own[key]) for key in shared)
    assert all(".attn." in key for key in {*student.inherited.new, *student.inherited.left})


@torch.no_grad()
def test_swin_of_timm() -> None:
    arguments = {"embed_dim": 8, "depths": (1, 1, 1, 2), "num_heads": (1, 2, 2, 4), "num_classes": 5}
    source = enliven(timm.create_model("swin_tiny_patch4_window7_224", **arguments)).eval()
    x = image(224, batch=1)
    assert_close(sightline.linearize(source, "softmax")(x), source(x))
    student = sightline.linearize(source, "inline,inline,inline,softmax")
    assert student(x).isfinite().all()


@pytest.mark.parametrize("name", KINDS)
@torch.no_grad()
def test_auto_starts_closer_than_inline(name: str) -> None:
    """Maps of one window or a few: softmax over near tokens is most of softmax over all of them."""
    source, x = small(name), image()
    softmax, auto, inline = (sightline.linearize(source, attention) for attention in ("softmax", "auto", "inline"))
    assert "window=7" in auto.inherited.attention
    assert sum(attention_errors(softmax, auto, x)) < sum(attention_errors(softmax, inline, x))


def test_auto_of_a_pyramid_is_inline() -> None:
    assert "window" not in sightline.linearize(tiny("pvt", attention="softmax"), "auto").inherited.attention


@torch.no_grad()
def test_queries_that_are_their_own_keys() -> None:
    source = small("vit_medium_patch16_gap_256", qk_norm=True)
    student = sightline.linearize(source, "soft")
    query, _, value = source.blocks[0].attn.qkv.weight.chunk(3)
    assert torch.equal(student.blocks[0].attn.qkv.weight, torch.cat([query, value]))
    assert student(image()).isfinite().all()


@torch.no_grad()
def test_what_is_added_starts_at_zero() -> None:
    """InLine without its residual has the same outputs; and training reaches the residual."""
    source = small("vit_tiny_patch16_224")
    x = image()
    plain, full = sightline.linearize(source, "inline(residual=false)"), sightline.linearize(source, "inline")
    assert_close(full(x), plain(x))
    with torch.enable_grad():
        full(x).square().sum().backward()
    assert full.blocks[0].attn.core.residual.fc2.weight.grad.abs().max() > 0


@torch.no_grad()
def test_errors_choose_the_blocks_to_keep() -> None:
    source, x = small("vit_tiny_patch16_224"), image(batch=4)
    source.blocks[1].attn.qkv.weight.mul_(8)  # sharp attention, which a linear one misses most
    teacher, student = sightline.linearize(source, "softmax"), sightline.linearize(source, "inline")
    errors = attention_errors(teacher, student, x)
    assert errors.shape == (3,)
    assert int(errors.argmax()) == 1
    assert attention_errors(teacher, sightline.linearize(source, "inline", keep=[1]), x)[1] == 0
    assert sightline.linearize(source, "inline", keep="auto:1", images=x).inherited.kept == (1,)
    with pytest.raises(InputError, match="images"):
        sightline.linearize(source, "inline", keep="auto:1")


@pytest.mark.parametrize("keep", [4, -1, [3], [0.5], "auto:4", "auto:", "some", True])
def test_blocks_that_are_not_there(keep: Any) -> None:
    with pytest.raises(InputError, match="keep="):
        sightline.linearize(small("vit_tiny_patch16_224"), "inline", keep=keep, images=image())


def test_a_number_of_blocks_is_spread_evenly() -> None:
    assert chosen_blocks(3, 12) == (0, 6, 11)
    assert chosen_blocks(1, 12) == (6,)
    assert chosen_blocks(12, 12) == tuple(range(12))


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("vit_base_patch16_rpn_224", "ResPostBlock"),
        ("vit_tiny_r_s16_p8_224", "HybridEmbed"),
        ("vit_base_patch16_18x2_224", "ParallelThingsBlock"),
        ("resnet18", "ResNet"),
    ],
)
def test_what_cannot_be_linearized_is_named(name: str, what: str) -> None:
    small = {} if name == "resnet18" else {"img_size": 64, "embed_dim": 32, "depth": 1, "num_heads": 2}
    with pytest.raises(InputError, match=what) as caught:
        sightline.linearize(timm.create_model(name, **small))
    assert "\n" not in str(caught.value)


def test_device_dtype_and_mode_are_those_of_the_source() -> None:
    source = small("vit_tiny_patch16_224").to(torch.bfloat16).train()
    student = sightline.linearize(source)
    assert next(student.parameters()).dtype == torch.bfloat16
    assert student.training
    with torch.device("meta"):
        empty = timm.create_model("vit_tiny_patch16_224")
    assert next(sightline.linearize(empty).parameters()).is_meta
