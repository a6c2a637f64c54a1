"""Patches of images and of maps."""

import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim

from sightline import backend
from sightline.layers.patch import PATCH, PatchEmbed, PatchMerge, pad_to_multiple, picked_patches
from sightline.ops.patches import gather_patches

from ..ops.brute_force import assert_close
from ..ops.cases import DEVICE

SIZES = [(8, 8), (7, 9), (5, 4), (1, 3)]


@torch.no_grad()
@pytest.mark.parametrize("kernel", [True, False])
@pytest.mark.parametrize("by_column", [True, False])
@pytest.mark.parametrize("size", [(2, 2), (3, 2)])
@pytest.mark.parametrize("shape", SIZES)
def test_picked_patches_are_those_of_a_padded_map(
    shape: tuple[int, int], size: tuple[int, int], by_column: bool, kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(2, 5, *shape, device=DEVICE)
    monkeypatch.setattr(backend, "patch_kernel", lambda x: kernel)
    found, grid = picked_patches(x, size, by_column)
    patches = F.unfold(pad_to_multiple(x, size), size, stride=size).unflatten(1, (5, *size))  # B C down across n
    assert grid[0] * grid[1] == patches.shape[4]
    order = (0, 4, 3, 2, 1) if by_column else (0, 4, 2, 3, 1)
    assert torch.equal(found, patches.permute(order).flatten(2))


def test_a_kernel_takes_lines_that_are_longer_than_a_program() -> None:
    x = torch.randn(3, 7 * 9, 300, device=DEVICE)
    found = gather_patches(x, (7, 9), (2, 2), by_column=True)
    maps = F.pad(x.unflatten(1, (7, 9)), (0, 0, 0, 1, 0, 1)).unflatten(2, (5, 2)).unflatten(1, (4, 2))
    assert torch.equal(found, maps.permute(0, 1, 3, 4, 2, 5).flatten(3).flatten(1, 2))


@torch.no_grad()
def test_a_merge_is_exported_for_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the patches that a GPU takes, by their list on a CPU."""
    module, axes = PatchMerge(8, 6).eval(), {2: Dim("height", min=3, max=99), 3: Dim("width", min=3, max=99)}
    maps = {shape: torch.randn(3, 8, *shape) for shape in SIZES[:3]}
    wanted = {shape: module(x)[0] for shape, x in maps.items()}
    answers = iter([True, False])  # that of the merge, and of the patches
    monkeypatch.setattr(backend, "patch_kernel", lambda x: next(answers))
    program = torch.export.export(
        module, (torch.randn(3, 8, 11, 13),), dynamic_shapes=(axes,), strict=False,
        prefer_deferred_runtime_asserts_over_guards=True,
    )  # fmt: skip
    for shape, x in maps.items():
        assert_close(program.module()(x)[0], wanted[shape], 1e-5)


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
