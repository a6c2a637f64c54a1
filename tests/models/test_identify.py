"""Which variant a state dict belongs to."""

from typing import Any

import pytest
import torch

from sightline.models.weights.fit import MismatchError
from sightline.models.weights.identify import Identity, arguments, identify
from sightline.models.zoo import VARIANTS, create
from sightline.util.errors import FileError
from tests.cli.checkpoints import public, small

ALIKE = {
    "inline_cswin_base": "inline_cswin_base_384",
    **{n: n.replace("soft", "soft_norm") for n in VARIANTS if "soft" in n},
}


def _state(name: str, **kwargs: Any) -> dict[str, torch.Tensor]:
    return create(name, device="meta", **kwargs).state_dict()


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in VARIANTS if "soft_norm" not in n and n != "inline_cswin_base_384"])
def test_every_published_variant(name: str) -> None:
    names = [name, ALIKE[name]] if name in ALIKE else [name]
    assert identify(_state(name)) == [Identity(n) for n in names]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kwargs", "exact"),
    [
        ("soft_small", {"depths": (1, 3, 20, 4)}, False),
        ("inline_pvt_tiny", {"attention": "softmax"}, False),
        ("inline_pvt_tiny", {"attention": "softmax", "sr_ratios": (1, 1, 1, 1)}, False),
        ("inline_pvt_small", {"num_classes": 10, "in_chans": 1, "img_size": (384, 640)}, True),
        ("inline_swin_base", {"attention": "softmax"}, False),
        ("inline_swin_base", {"attention": "softmax", "window_size": 8}, False),
        ("inline_swin_tiny", {"attention": "inline*1+softmax*1,inline,softmax,softmax"}, False),
        ("inline_swin_tiny", {"attention": "linear"}, False),
        ("inline_swin_tiny", {"attention": "inline(phi=relu_affine)"}, False),
        ("inline_swin_tiny", {"attention": "performer"}, False),
        ("inline_deit_tiny", {"attention": "performer(features=64)"}, False),
        ("inline_pvt_tiny", {"attention": "linformer"}, False),
        ("inline_deit_tiny", {"attention": "linformer(rank=9,side=7,share=true)"}, False),
        ("inline_cswin_tiny", {"attention": "focused"}, False),
        ("soft_tiny", {"attention": "focused(kernel=3),soft,soft,softmax"}, False),
        ("inline_pvt_tiny", {"attention": "linear_angular(kernel=5)"}, False),
        ("inline_swin_tiny", {"attention": "enhanced"}, False),
        ("inline_deit_tiny", {"attention": "enhanced(scales=2,kernel=3)"}, False),
        ("inline_deit_tiny", {"attention": "hedgehog"}, False),
        ("inline_cswin_tiny", {"attention": "hedgehog(share=true,kernel=3)"}, False),
        ("inline_swin_tiny", {"attention": "rala(gate=true)"}, False),
        ("inline_pvt_tiny", {"attention": "mala(kernel=5)"}, False),
        ("inline_deit_tiny", {"attention": "ttt(project=true,kernel=3)"}, False),
        ("inline_swin_tiny", {"attention": "inline(key_norm=true,temperature=true,head_map=true)"}, False),
        ("inline_cswin_tiny", {"attention": "inline(hidden=8)"}, False),
        ("inline_deit_tiny", {"attention": "linear(temperature=true)"}, False),
        ("inline_vit_tiny", {}, True),
        ("inline_vit_tiny", {"depths": 2, "attention": "inline(agents=49,window=7)"}, False),
        ("inline_cswin_tiny", {"attention": "inline"}, False),
        ("inline_cswin_tiny", {"depths": (1, 2, 17, 1)}, False),
        ("inline_deit_tiny", {"num_classes": 0, "img_size": 384}, True),
        ("inline_deit_small", {"depths": 3, "patch_size": 32, "mlp_ratio": 2.0, "qkv_bias": False}, False),
        ("inline_deit_tiny", {"num_heads": 2}, False),
        ("inline_conv_small", {"attention": "softmax", "stem_stride": 2, "conv_mlp": False}, False),
        ("inline_conv_small", {"depths": (0, 1, 3, 2), "conv_depths": (1, 2, 0, 2), "init_values": 1.0}, False),
    ],
)
def test_what_differs_becomes_arguments(name: str, kwargs: dict[str, Any], exact: bool) -> None:
    found = identify(_state(name, **kwargs))[0]
    assert (found, found.exact) == (Identity(name, kwargs), exact)


@pytest.mark.parametrize("family", ["deit", "pvt", "swin"])
def test_public_layout_is_told_as_the_native_one(family: str) -> None:
    model = small(family)
    assert identify(public(model)) == identify(model.state_dict())


def test_weights_are_not_touched() -> None:
    state = public(small("pvt"))
    before = {key: value.clone() for key, value in state.items()}
    identify(state)
    assert state.keys() == before.keys()
    assert all(torch.equal(state[key], before[key]) for key in state)


def test_no_family() -> None:
    for state in ({}, {"conv1.weight": torch.zeros(3)}):
        with pytest.raises(FileError, match="no family that sightline reads"):
            identify(state)


def test_wrong_keys_are_named() -> None:
    state = small("deit").state_dict()
    del state["blocks.1.attn.proj.bias"]
    state["blocks.0.extra"] = torch.zeros(1)
    with pytest.raises(MismatchError) as caught:
        identify(state)
    assert caught.value.mismatch.missing == ("blocks.1.attn.proj.bias",)
    assert caught.value.mismatch.unexpected == ("blocks.0.extra",)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("forged", "message"),
    [
        ({"blocks.7.norm1.weight": (16,)}, "up to number 7 but 2 is missing"),
        ({"blocks.999999999.norm1.weight": (16,)}, "up to number 999999999 but 2 is missing"),
        ({f"blocks.{i}.norm1.weight": (16,) for i in range(1200)}, "1200 blocks"),
        ({"stages.3.blocks.0.norm1.weight": (16,)}, r"1 unexpected: stages\.3"),
        ({"blocks.0.norm1.weight": (0,)}, r"has shape \(0,\)"),
        ({"patch_embed.proj.weight": (16, 3)}, r"has shape \(16, 3\)"),
        ({"blocks.0.norm1.weight": (10**15,)}, "do not fit|cannot be built"),
        ({"blocks.0.attn.core.residual.fc1.weight": (16, 5, 1)}, "does not divide|do not fit"),
    ],
)
def test_forged_shapes(forged: dict[str, tuple[int, ...]], message: str) -> None:
    state = small("deit").state_dict()
    state.update({key: torch.empty(shape, device="meta") for key, shape in forged.items()})
    with pytest.raises(ValueError, match=message):
        identify(state)


def test_arguments_of_a_variant() -> None:
    found = arguments("inline_swin_base_384")
    assert found["embed_dims"] == (128, 256, 512, 1024)
    assert found["window_size"] == 12
    assert found["img_size"] == 384
    assert arguments("inline_deit_tiny")["depths"] == (12,)


def test_reads_well() -> None:
    assert str(Identity("a")) == "a"
    assert str(Identity("a", {"depths": (1, 2), "attention": "softmax"})) == "a (depths=(1, 2), attention='softmax')"
