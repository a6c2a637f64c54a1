"""Attention maps against the blocks: the weights, applied to the values, must give what the block gave."""

import doctest
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from timm.data import create_transform, resolve_model_data_config
from torch import Tensor, nn

import sightline.analysis
from sightline.analysis.capture import CoreCall, attention_blocks, capture
from sightline.analysis.maps import AttentionMap, Patch, attention_maps, maps_of
from sightline.layers import MECHANISMS as TABLE
from sightline.layers import Place, Spec
from sightline.layers.attention import project
from sightline.layers.conv import HeadwiseConv, SharedConv
from sightline.layers.mechanisms.baselines.enhanced import Scale
from sightline.layers.mechanisms.inline import ResidualWeights
from sightline.layers.patch import pad_to_multiple, to_map, to_tokens
from sightline.layers.stripe_attention import Branch
from sightline.util.errors import InputError

from ..models.tiny import TINY, WITH_CLASS_TOKEN, every_family, image, tiny

MECHANISMS = (
    *(name for name, row in TABLE.items() if row.core.has_rows and not row.core.shared_qk),
    "inline(phi=relu)",
    "linear(phi=relu_affine)",
)
QUERIES = ((0.0, 0.0), (0.5, 0.5), (0.3, 0.9), (1.0, 1.0))


def bare(model: nn.Module) -> nn.Module:
    """The model without local terms and output projections, so that a block gives its weights times its values."""
    for module in model.modules():
        if isinstance(module, ResidualWeights):
            nn.init.zeros_(module.fc2.weight)
            nn.init.zeros_(module.fc2.bias)  # type: ignore[arg-type]
        elif isinstance(module, HeadwiseConv | SharedConv):
            for parameter in module.parameters():
                nn.init.zeros_(parameter)
        elif isinstance(module, Scale):
            nn.init.zeros_(module.fuse.weight)
        elif isinstance(module, Branch):
            nn.init.zeros_(module.lepe.weight)
            nn.init.zeros_(module.lepe.bias)  # type: ignore[arg-type]
        elif hasattr(module, "qkv"):
            nn.init.eye_(module.proj.weight)
            nn.init.zeros_(module.proj.bias)
    return model


def inputs_and_outputs(model: nn.Module, x: Tensor) -> dict[str, tuple[Tensor, tuple[int, int], Tensor]]:
    seen: dict[str, Any] = {}
    handles = [
        dict(model.named_modules())[name].register_forward_hook(
            lambda _, args, out, name=name: seen.update({name: (args[0], args[1], out)})
        )
        for name in attention_blocks(model)
    ]
    model(x)
    for handle in handles:
        handle.remove()
    return seen


def values(module: Any, x: Tensor, grid: tuple[int, int]) -> Tensor:
    """The values (N, H, D) of a block in the order of the map, or of the reduced one."""
    heads = module.num_heads if hasattr(module, "num_heads") else module.core.num_heads
    if getattr(module, "sr", None) is not None:
        x = module.sr_norm(to_tokens(module.sr(pad_to_multiple(to_map(x, grid), module.sr.stride)))[0])
    return project(module.qkv, heads, x)[2][0]


def own_scale(module: Any, weights: Tensor) -> Tensor:
    """Of heads for every scale, in every branch, those of the tokens themselves."""
    branches = len(getattr(module, "branches", [0]))
    return torch.cat([part.chunk(2)[0] for part in weights.chunk(branches)])


def check(model: nn.Module, found: AttentionMap, seen: tuple[Tensor, tuple[int, int], Tensor]) -> None:
    module, (x, grid, out) = dict(model.named_modules())[found.block], seen
    weights = torch.cat([found.prefix, found.weights.flatten(1)], 1)  # heads keys
    v = values(module, x, grid)
    if found.mechanism == "enhanced":  # heads of the tokens' own scale; the others are not fused here
        weights = own_scale(module, weights)
    if found.mechanism == "hydra":  # one head per channel
        v = v.flatten(1).unsqueeze(-1)
    mixed = torch.einsum("hn,nhd->hd", weights, v).flatten()
    prefix = found.prefix.shape[1]
    token = 0 if found.position is None else prefix + found.position[0] * grid[1] + found.position[1]
    torch.testing.assert_close(mixed, out[0, token], rtol=1e-3, atol=1e-4 * float(out.abs().max()))


@pytest.mark.slow
@every_family
@pytest.mark.parametrize("mechanism", MECHANISMS)
@torch.no_grad()
def test_weights_times_values_are_the_output(family: str, mechanism: str) -> None:
    model = bare(tiny(family, attention=mechanism))
    x = image(64, 80, batch=1)
    seen = inputs_and_outputs(model, x)
    blocks = capture(model, x[0])
    for query in QUERIES:
        maps = maps_of(blocks, query)
        assert [found.block for found in maps] == list(seen)
        for found in maps:
            check(model, found, seen[found.block])


@pytest.mark.parametrize("family", ["soft", "soft_norm"])
@torch.no_grad()
def test_soft(family: str) -> None:
    model, x = bare(tiny(family)), image(64, 80, batch=1)
    seen = inputs_and_outputs(model, x)
    for found in attention_maps(model, x[0], (0.4, 0.7)):
        check(model, found, seen[found.block])


@torch.no_grad()
def test_windows_of_linear_attention_and_their_shift() -> None:
    model = bare(tiny("swin", attention="inline", map_window=3, depths=(2, 2, 2, 2)))
    x = image(64, 80, batch=1)
    seen = inputs_and_outputs(model, x)
    for query in QUERIES:
        for found in attention_maps(model, x[0], query):
            check(model, found, seen[found.block])
    first = attention_maps(model, x[0])[0]
    assert int((first.weights[0] != 0).sum()) == 9  # the window of the query, nothing else


@pytest.mark.parametrize("family", WITH_CLASS_TOKEN)
@torch.no_grad()
def test_class_token(family: str) -> None:
    model, x = bare(tiny(family)), image(64, 80, batch=1)
    seen = inputs_and_outputs(model, x)
    maps = attention_maps(model, x[0], None)
    assert maps
    for found in maps:
        assert found.position is None
        check(model, found, seen[found.block])


@pytest.mark.parametrize("mechanism", ["softmax", "inline(phi=relu_affine)", "soft"])
@torch.no_grad()
def test_rows_of_half_precision_are_in_float32(mechanism: str) -> None:
    core = Spec.parse(mechanism).build(16, 2, 16)
    q, k = torch.randn(2, 3, 20, 2, 8).bfloat16()
    call = CoreCall(core, q, k, k, Place((4, 5), q.flatten(2)), torch.arange(1, 21).repeat(3, 1))
    want = call.to(torch.float32).rows(2, torch.arange(20))
    core.bfloat16()
    got = call.rows(2, torch.arange(20))
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, want, rtol=0, atol=2e-2 * float(want.abs().max()))
    assert call.core is core
    assert next(iter(core.parameters()), q).dtype == torch.bfloat16  # left as it was


def test_a_query_that_is_text() -> None:
    with pytest.raises(InputError, match=r"query: .*'class'"):
        attention_maps(tiny("deit"), image(64, batch=1)[0], "class")


def test_a_model_without_attention() -> None:
    with pytest.raises(InputError, match=r"model: Flatten has no attention blocks of sightline"):
        attention_maps(torch.nn.Flatten(), image(64, batch=1)[0])


@torch.no_grad()
def test_no_class_token_no_maps() -> None:
    assert attention_maps(tiny("pvt"), image(64, batch=1)[0], None) == []


@every_family
@torch.no_grad()
def test_inline_is_signed_and_sums_to_one(family: str) -> None:
    for found in attention_maps(tiny(family, attention="inline"), image(64, batch=1)[0] * 30):
        total = found.weights.sum((1, 2)) + found.prefix.sum(1)
        torch.testing.assert_close(total, torch.ones_like(total), rtol=0, atol=1e-4)
    sharp = tiny("deit", attention="inline(residual=false)")
    for block in sharp.blocks:
        block.attn.qkv.weight.data *= 30
    assert any((found.weights < 0).any() for found in attention_maps(sharp, image(64, batch=1)[0]))


@torch.no_grad()
def test_the_model_is_left_as_it_was() -> None:
    model, x = tiny("deit"), image(64, batch=1)
    before = model(x)
    attention_maps(model, x[0])
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())
    torch.testing.assert_close(model(x), before, rtol=0, atol=0)


@torch.no_grad()
def test_chosen_blocks_and_places() -> None:
    model, x = tiny("deit"), image(64, 80, batch=1)[0]
    (found,) = attention_maps(model, x, (0.99, 0.0), blocks=["blocks.1.attn"])
    assert (found.block, found.mechanism, found.grid, found.position) == ("blocks.1.attn", "inline", (4, 5), (3, 0))
    with pytest.raises(ValueError, match=r"blocks\.9"):
        attention_maps(model, x, blocks=["blocks.9"])
    with pytest.raises(ValueError, match="query"):
        attention_maps(model, x, (1.5, 0))


@torch.no_grad()
def test_the_published_models_on_the_fast_path() -> None:
    name, _ = TINY["pvt"]
    model = timm.create_model(name, depths=(1, 1, 1, 1)).eval()
    maps = attention_maps(model, torch.randn(3, 96, 160))
    assert [tuple(found.weights.shape[1:]) for found in maps] == [(24, 40), (12, 20), (6, 10), (3, 5)]


@torch.no_grad()
def test_pictures_and_patches(tmp_path: Path) -> None:
    model = tiny("deit")
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (90, 120, 3), dtype=np.uint8))
    picture.save(tmp_path / "picture.png")
    x = create_transform(**resolve_model_data_config(model), is_training=False)(picture)
    want = attention_maps(model, x, (0.5, 0.5))
    for given in (picture, tmp_path / "picture.png", str(tmp_path / "picture.png")):
        for one, other in zip(attention_maps(model, given), want, strict=True):
            torch.testing.assert_close(one.weights, other.weights)
    height = want[0].grid[0]
    (found,) = attention_maps(model, x, Patch(height - 1, 0), ["blocks.0.attn"])
    assert found.position == (height - 1, 0)
    with pytest.raises(ValueError, match=f"{height},0"):
        attention_maps(model, x, Patch(height, 0))


def test_the_example_runs() -> None:
    examples = doctest.DocTestFinder().find(attention_maps, globs={"timm": timm, "torch": torch})
    assert examples[0].examples
    for example in examples:
        example.globs["attention_maps"] = sightline.analysis.attention_maps
        assert doctest.DocTestRunner().run(example).failed == 0


def test_instruments_are_exported() -> None:
    assert all(callable(getattr(sightline.analysis, name)) for name in sightline.analysis.__all__)
