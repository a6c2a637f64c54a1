"""Patches of images and of maps."""

import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim

from sightline import backend
from sightline.layers.patch import PATCH, PatchEmbed, pad_to_multiple, picked_patches

from ..ops.brute_force import assert_close

SIZES = [(8, 8), (7, 9), (5, 4), (1, 3)]


@pytest.mark.parametrize("size", [(2, 2), (3, 2)])
@pytest.mark.parametrize("shape", SIZES)
def test_picked_patches_are_those_of_a_padded_map(shape: tuple[int, int], size: tuple[int, int]) -> None:
    x = torch.randn(2, 5, *shape)
    found, grid = picked_patches(x, size)
    patches = F.unfold(pad_to_multiple(x, size), size, stride=size).unflatten(1, (5, -1))  # B C numbers patches
    assert grid[0] * grid[1] == patches.shape[3]
    assert torch.equal(found, patches.permute(0, 3, 2, 1).flatten(2))


@torch.no_grad()
def test_exported_for_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """The product that a GPU takes, traced with symbols, gives the convolution."""
    module = PatchEmbed(PATCH, 6, 2, norm=True).eval()
    wanted = {shape: module(torch.ones(3, PATCH, *shape).cumsum(2).cumsum(3) / 9)[0] for shape in SIZES[:3]}
    monkeypatch.setattr(backend, "patch_product", lambda x: True)
    axes = {0: Dim("batch", min=1, max=9), 2: Dim("height", min=3, max=99), 3: Dim("width", min=3, max=99)}
    program = torch.export.export(
        module, (torch.randn(2, PATCH, 11, 13),), dynamic_shapes=(axes,), strict=False,
        prefer_deferred_runtime_asserts_over_guards=True,
    )  # fmt: skip
    assert any("index" in str(node.target) for node in program.graph.nodes)
    for shape, tokens in wanted.items():
        found = program.module()(torch.ones(3, PATCH, *shape).cumsum(2).cumsum(3) / 9)[0]
        assert_close(found, tokens, 1e-5)
