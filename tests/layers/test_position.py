"""Position tables and relative position biases at any grid."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sightline.layers.position import PositionTable, interpolation_matrix, resample_grid
from sightline.layers.window_attention import RelativePositionBias, resample_bias

from ..models.tiny import assert_close

OPTIONS = {"bilinear": {"mode": "bilinear"}, "bicubic": {"mode": "bicubic", "antialias": True}}
GRIDS = [(8, 8), (4, 16), (16, 4), (3, 5), (1, 1), (1, 64), (13, 2)]


def table(grid: tuple[int, int] = (8, 8), prefix: int = 0, mode: str = "bilinear") -> PositionTable:
    module = PositionTable(grid, 6, prefix, mode)
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return module


@pytest.mark.parametrize("mode", OPTIONS)
@pytest.mark.parametrize("prefix", [0, 1, 2])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_any_grid_is_interpolated(grid: tuple[int, int], prefix: int, mode: str) -> None:
    module = table(prefix=prefix, mode=mode)
    got = module(grid)
    assert got.shape == (1, prefix + grid[0] * grid[1], 6)
    maps = module.weight.permute(0, 3, 1, 2)
    expected = F.interpolate(maps, grid, align_corners=False, **OPTIONS[mode])
    assert_close(got[:, prefix:], expected.flatten(2).transpose(1, 2))
    if prefix:
        assert torch.equal(got[:, :prefix], module.prefix)


@pytest.mark.parametrize("mode", OPTIONS)
@pytest.mark.parametrize("target", [1, 2, 5, 8, 13, 64])
def test_interpolation_matrix(target: int, mode: str) -> None:
    """What compiled and exported models resample with, against torch's own."""
    maps = torch.randn(1, 4, 8, 8)
    expected = F.interpolate(maps, (target, 8), align_corners=False, **OPTIONS[mode])
    got = interpolation_matrix(8, target, mode) @ maps
    assert_close(got, expected, 1e-6)
    if target == 8:
        assert torch.equal(got, maps)


def test_own_grid_is_the_table_itself() -> None:
    module = table((4, 16))
    assert torch.equal(module((4, 16)), module.weight.flatten(1, 2))
    assert resample_grid(module.weight, (4, 16), "bilinear") is module.weight


def test_equal_number_of_tokens_is_not_equal_shape() -> None:
    module = table((8, 8))
    rows = module.weight.flatten(1, 2)
    for grid in ((4, 16), (16, 4)):
        assert not torch.allclose(module(grid), rows, atol=0.1)


def test_constants_and_ramps_keep_their_form() -> None:
    """A table that only depends on the row still does, on any grid, and rises as before."""
    module = table((8, 8))
    with torch.no_grad():
        module.weight.copy_(torch.linspace(0, 1, 8)[None, :, None, None].expand(1, 8, 8, 6))
    out = module((5, 3)).reshape(5, 3, 6)
    assert_close(out, out[:, :1, :1].expand_as(out))
    assert (out[1:, 0, 0] > out[:-1, 0, 0]).all()


@pytest.mark.parametrize("mode", OPTIONS)
def test_set_grid(mode: str) -> None:
    module = table(prefix=1, mode=mode)
    before = module((4, 16))
    prefix = module.prefix
    module.set_grid((4, 16))
    assert module.weight.shape == (1, 4, 16, 6)
    assert torch.equal(module((4, 16)), before)
    assert module.prefix is prefix
    assert isinstance(module.weight, nn.Parameter)
    assert module.weight.requires_grad
    module.weight.requires_grad_(False)
    module.set_grid((2, 2))
    assert not module.weight.requires_grad


def test_gradients_reach_the_table() -> None:
    module = table(prefix=1, mode="bicubic")
    module((5, 9)).square().sum().backward()
    assert (module.weight.grad.abs().sum(-1) > 0).all()
    assert (module.prefix.grad != 0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtype_is_kept(dtype: torch.dtype) -> None:
    module = table(mode="bicubic")
    expected = module((5, 9))
    got = module.to(dtype)((5, 9))
    assert got.dtype == dtype
    assert_close(got.float(), expected, 2e-2 if dtype != torch.float64 else 1e-6)


def bias(window: int = 3, heads: int = 2) -> RelativePositionBias:
    module = RelativePositionBias(window, heads)
    nn.init.normal_(module.table)
    return module


@pytest.mark.parametrize("size", [(3, 3), (2, 3), (3, 1), (1, 1)], ids=str)
def test_bias_by_offset(size: tuple[int, int]) -> None:
    module = bias()
    got = module(size)
    places = [divmod(i, size[1]) for i in range(size[0] * size[1])]
    for i, (yi, xi) in enumerate(places):
        for j, (yj, xj) in enumerate(places):
            assert torch.equal(got[:, i, j], module.table[(yi - yj + 2) * 5 + (xi - xj + 2)])


@pytest.mark.parametrize("window", [2, 4, 7])
def test_bias_resampled(window: int) -> None:
    module = bias()
    old = module.table.detach().clone()
    side = 2 * window - 1
    maps = F.interpolate(old.T.reshape(1, 2, 5, 5), (side, side), mode="bicubic", antialias=True)
    assert_close(resample_bias(old, window), maps.reshape(2, -1).T)
    module.set_window(window)
    assert module.side() == side
    assert_close(module.table.detach(), maps.reshape(2, -1).T)
    assert module((window, window)).shape == (2, window**2, window**2)
