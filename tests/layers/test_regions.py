"""Windows and stripes against attention of every region on its own, over real tokens only.

A region is what a window or stripe holds of the map: where sizes do not divide, and where windows are
shifted, it is smaller than the window. No token may see past its region, and padding may not be seen at all.
The map is small, so that each region is cut out by its rows and columns and attended to by definition.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sightline.layers import MECHANISMS, Spec
from sightline.layers.core import Place
from sightline.layers.mechanisms.softmax import SoftmaxCore
from sightline.layers.stripe_attention import Branch, StripeAttention
from sightline.layers.window_attention import WindowAttention

from ..ops.brute_force import assert_close as assert_exact
from ..ops.brute_force import attend, inline_weights, linear_weights, neighbours, softmax_weights

DIM, HEADS = 12, 2
GRIDS = [(4, 6), (5, 7), (3, 8), (7, 3), (2, 9), (1, 5), (2, 2), (5, 5)]
every_grid = pytest.mark.parametrize("grid", GRIDS, ids=str)
Grid = tuple[int, int]
Mix = Callable[[Tensor, Tensor, Tensor, Tensor, Grid], Tensor]


def randomize(module: nn.Module) -> nn.Module:
    """Weights that make every term count, in float64."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module.double()


def tokens(grid: Grid) -> Tensor:
    return torch.randn(2, grid[0] * grid[1], DIM, dtype=torch.float64)


def intervals(length: int, window: int, shift: int) -> list[tuple[int, int]]:
    """Where a side of the map is cut: every `window` tokens from `shift` on, if it is longer than one."""
    if length <= window:
        return [(0, length)]
    cuts = [0, *range(shift or window, length, window), length]
    return list(pairwise(cuts))


def regions(grid: Grid, window: Grid, shift: int = 0) -> Iterator[tuple[Tensor, Grid]]:
    """The tokens of every region, and its height and width."""
    places = torch.arange(grid[0] * grid[1]).reshape(grid)
    for top, bottom in intervals(grid[0], window[0], shift):
        for left, right in intervals(grid[1], window[1], shift):
            yield places[top:bottom, left:right].flatten(), (bottom - top, right - left)


def by_region(q: Tensor, k: Tensor, v: Tensor, context: Tensor, mix: Mix, cut: list) -> Tensor:
    """`mix` on each region alone; q, k, v (B, N, H, D) -> (B, N, H, D)."""
    out = torch.full_like(v, float("nan"))
    for index, size in cut:
        out[:, index] = mix(q[:, index], k[:, index], v[:, index], context[:, index], size)
    return out


def project(layer: nn.Module, x: Tensor) -> list[Tensor]:
    return [part.unflatten(-1, (HEADS, -1)) for part in layer.qkv(x).chunk(3, -1)]


def residual_weights(core: nn.Module, context: Tensor) -> Tensor:
    """The published form: two grouped convolutions of the region's mean token."""
    mean = context.mean(1).unsqueeze(-1)
    return core.residual.fc2(F.gelu(core.residual.fc1(mean))).reshape(len(context), -1, 3, 3)


def inline_of(core: nn.Module) -> Mix:
    def mix(q: Tensor, k: Tensor, v: Tensor, context: Tensor, size: Grid) -> Tensor:
        return attend(inline_weights(q, k), v) + neighbours(v, residual_weights(core, context), size)

    return mix


def softmax_of(table: Tensor | None, window: int) -> Mix:
    """Softmax with the bias of every pair's offset, where there is a table."""

    def mix(q: Tensor, k: Tensor, v: Tensor, context: Tensor, size: Grid) -> Tensor:
        y, x = (t.flatten() for t in torch.meshgrid(*(torch.arange(s) for s in size), indexing="ij"))
        bias = None
        if table is not None:
            dy, dx = y[:, None] - y[None, :] + window - 1, x[:, None] - x[None, :] + window - 1
            bias = table.reshape(2 * window - 1, 2 * window - 1, -1)[dy, dx].permute(2, 0, 1)
        return attend(softmax_weights(q, k, bias=bias), v)

    return mix


MAP_MECHANISMS: dict[str, Callable[[nn.Module], Mix]] = {
    "inline": inline_of,
    "inline(residual=false)": lambda core: lambda q, k, v, *_: attend(inline_weights(q, k), v),
    "linear": lambda core: lambda q, k, v, *_: attend(linear_weights(q, k), v),
    "none": lambda core: lambda q, k, v, *_: v,
}


@every_grid
@pytest.mark.parametrize("window", [2, 3])
@pytest.mark.parametrize("shift", [False, True])
def test_softmax_windows(grid: Grid, window: int, shift: bool) -> None:
    layer = randomize(WindowAttention(DIM, HEADS, Spec.parse("softmax"), window=window, shift=shift))
    x = tokens(grid)
    cut = list(regions(grid, (window, window), window // 2 if shift else 0))
    mixed = by_region(*project(layer, x), x, softmax_of(layer.position_bias.table, window), cut)
    assert_exact(layer(x, grid), layer.proj(mixed.flatten(2)), 1e-10)


@every_grid
@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("mechanism", MAP_MECHANISMS)
def test_windows_of_other_mechanisms(grid: Grid, mechanism: str, shift: bool) -> None:
    layer = randomize(WindowAttention(DIM, HEADS, Spec.parse(mechanism), window=3, shift=shift))
    x = tokens(grid)
    cut = list(regions(grid, (3, 3), 1 if shift else 0))
    mixed = by_region(*project(layer, x), x, MAP_MECHANISMS[mechanism](layer.core), cut)
    assert_exact(layer(x, grid), layer.proj(mixed.flatten(2)), 1e-10)


@every_grid
def test_no_window_is_the_whole_map(grid: Grid) -> None:
    layer = randomize(WindowAttention(DIM, HEADS, Spec.parse("inline"), window=0, shift=True))
    x = tokens(grid)
    mixed = inline_of(layer.core)(*project(layer, x), x, grid)
    assert_exact(layer(x, grid), layer.proj(mixed.flatten(2)), 1e-10)


def lepe(branch: Branch, v: Tensor, size: Grid) -> Tensor:
    """The static convolution of a region's values, which sees zeros past its border."""
    maps = v.flatten(2).transpose(1, 2).unflatten(-1, size)
    return branch.lepe(maps).flatten(2).transpose(1, 2).unflatten(-1, v.shape[2:])


def stripes_by_definition(layer: StripeAttention, x: Tensor, context: Tensor, grid: Grid, width: int) -> Tensor:
    parts = [part.chunk(2, 2) for part in project(layer, x)]
    outputs = []
    for i, (branch, stripe) in enumerate(zip(layer.branches, ((grid[0], width), (width, grid[1])), strict=True)):
        core = softmax_of(None, 0) if layer.mechanism.windowed else inline_of(branch.core)

        def mix(q: Tensor, k: Tensor, v: Tensor, c: Tensor, s: Grid, b: Branch = branch, m: Mix = core) -> Tensor:
            return m(q, k, v, c, s) + lepe(b, v, s)

        cut = list(regions(grid, stripe))
        outputs.append(by_region(*(p[i] for p in parts), context.chunk(2, -1)[i], mix, cut))
    return layer.proj(torch.cat(outputs, 2).flatten(2))


@every_grid
@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.parametrize("mechanism", ["softmax", "inline"])
def test_stripes(grid: Grid, width: int, mechanism: str) -> None:
    layer = randomize(StripeAttention(DIM, HEADS, Spec.parse(mechanism), stripe=width))
    x, context = tokens(grid), tokens(grid)
    got = layer(x, grid, context=context)
    assert_exact(got, stripes_by_definition(layer, x, context, grid, width), 1e-10)


class Other(SoftmaxCore):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, place: Place) -> Tensor:
        return v


def test_both_directions_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """On square maps, unless a core has a hook or is of another mechanism."""
    layer = randomize(StripeAttention(DIM, HEADS, Spec.parse("softmax"), stripe=2))
    cores: list[object] = []
    monkeypatch.setattr(SoftmaxCore, "forward", lambda core, q, *_: cores.append(core) or q)
    layer(tokens((4, 4)), (4, 4))
    assert len(cores) == 1
    layer(tokens((4, 6)), (4, 6))
    assert len(cores) == 3
    layer.branches[1].core.register_forward_hook(lambda *_: None)
    layer(tokens((4, 4)), (4, 4))
    assert len(cores) == 5
    layer.branches[1].core = Other(DIM // 2, HEADS // 2)
    layer(tokens((4, 4)), (4, 4))
    assert len(cores) == 6


@every_grid
@pytest.mark.parametrize("mechanism", ["softmax", "inline"])
def test_no_stripes_is_the_whole_map(grid: Grid, mechanism: str) -> None:
    layer = randomize(StripeAttention(DIM, HEADS, Spec.parse(mechanism), stripe=0))
    (branch,) = layer.branches
    x, context = tokens(grid), tokens(grid)
    q, k, v = project(layer, x)
    mix = softmax_of(None, 0) if mechanism == "softmax" else inline_of(branch.core)
    mixed = mix(q, k, v, context, grid) + lepe(branch, v, grid)
    assert_exact(layer(x, grid, context=context), layer.proj(mixed.flatten(2)), 1e-10)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("shift", [False, True])
def test_a_token_does_not_see_past_its_region(mechanism: str, shift: bool) -> None:
    """Also of the mechanisms whose landmarks depend on where a region lies in its window."""
    grid = (5, 7)
    layer = randomize(WindowAttention(DIM, HEADS, Spec.parse(mechanism), window=3, shift=shift))
    x = tokens(grid).requires_grad_()
    out = layer(x, grid)
    for index, _ in regions(grid, (3, 3), 1 if shift else 0):
        (grad,) = torch.autograd.grad(out[:, index].square().sum(), x, retain_graph=True)
        outside = torch.ones(35, dtype=torch.bool)
        outside[index] = False
        assert (grad[:, outside] == 0).all()
        assert (grad[:, index] != 0).all()


@pytest.mark.parametrize("layer", ["window", "stripe"])
def test_rejects_what_it_cannot_place(layer: str) -> None:
    spec = Spec.parse("softmax")
    module = (
        WindowAttention(DIM, HEADS, spec, window=2, shift=False)
        if layer == "window"
        else StripeAttention(DIM, HEADS, spec, stripe=2)
    )
    x, mask = torch.randn(1, 17, DIM), torch.ones(1, 16, dtype=torch.bool)
    with pytest.raises(ValueError, match="no prefix tokens"):
        module(x, (4, 4), 1)
    with pytest.raises(ValueError, match="no key_mask"):
        module(x[:, 1:], (4, 4), key_mask=mask)
