"""Windows of a token map: cut and joined again, and which of their tokens are real."""

import random

import pytest
import torch

from sightline.layers.windows import Windows

CASES = [
    ((4, 6), (2, 3), (0, 0)),
    ((5, 7), (2, 3), (0, 0)),
    ((5, 7), (2, 3), (1, 2)),
    ((1, 9), (1, 4), (0, 3)),
    ((3, 3), (3, 3), (0, 0)),
    ((2, 2), (5, 4), (0, 0)),
]
_random = random.Random(0)
for _ in range(30):
    _size = (_random.randint(1, 6), _random.randint(1, 6))
    _offset = (_random.randint(0, _size[0] - 1), _random.randint(0, _size[1] - 1))
    CASES.append(((_random.randint(1, 13), _random.randint(1, 13)), _size, _offset))

every_case = pytest.mark.parametrize(("grid", "size", "offset"), CASES, ids=str)
Pair = tuple[int, int]


def place_in_windows(grid: Pair, size: Pair, offset: Pair, y: int, x: int) -> tuple[int, int]:
    """Window and token inside it of the place (y, x), by counting."""
    across = -(-(grid[1] + offset[1]) // size[1])
    y, x = y + offset[0], x + offset[1]
    return y // size[0] * across + x // size[1], y % size[0] * size[1] + x % size[1]


@every_case
def test_join_undoes_cut(grid: Pair, size: Pair, offset: Pair) -> None:
    windows, x = Windows(grid, size, offset), torch.randn(2, grid[0] * grid[1], 3)
    cut = windows.cut(x)
    assert cut.shape == (2 * windows.counts[0] * windows.counts[1], size[0] * size[1], 3)
    assert torch.equal(windows.join(cut), x)
    assert windows.padded == (cut[..., 0].numel() != x[..., 0].numel())


@every_case
def test_every_place_is_where_it_belongs(grid: Pair, size: Pair, offset: Pair) -> None:
    windows = Windows(grid, size, offset)
    x = torch.arange(1, 1 + grid[0] * grid[1]).reshape(1, -1, 1).repeat(2, 1, 1)
    x[1] *= -1
    cut = windows.cut(x).squeeze(-1)
    expected = torch.zeros_like(cut)
    half = len(cut) // 2
    for i in range(grid[0] * grid[1]):
        window, token = place_in_windows(grid, size, offset, *divmod(i, grid[1]))
        expected[window, token], expected[half + window, token] = i + 1, -i - 1
    assert torch.equal(cut, expected)


@every_case
def test_mask_is_true_for_real_tokens(grid: Pair, size: Pair, offset: Pair) -> None:
    windows = Windows(grid, size, offset)
    mask = windows.key_mask(2, torch.device("cpu"))
    real = windows.cut(torch.ones(2, grid[0] * grid[1], 1)).squeeze(-1) == 1
    if mask is None:
        assert real.all()
    else:
        assert mask.dtype == torch.bool
        assert torch.equal(mask, real)
        assert mask.sum() == 2 * grid[0] * grid[1]
        assert mask.any(1).all(), "a window of nothing but padding"


def test_no_padding_no_mask() -> None:
    assert Windows((4, 6), (2, 3)).key_mask(2, torch.device("cpu")) is None
    assert Windows((4, 6), (2, 3), (1, 0)).key_mask(2, torch.device("cpu")) is not None


def test_gradients_go_through() -> None:
    windows = Windows((5, 7), (2, 3), (1, 2))
    x = torch.randn(1, 35, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: windows.join(windows.cut(t).sin()), (x,))
