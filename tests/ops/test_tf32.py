"""Float32 in TF32: the kernels follow torch's setting, as its own products do."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from sightline.ops import headwise_conv, linear_attention

from .cases import DEVICE, GPU, TOLERANCE, compare, inline, tokens, weights
from .soft.cases import inputs, soft

# Ten bits after the point, as float16 has; but the tensor cores cut off what is beyond, which is twice as far.
CUT_OFF = 2 * TOLERANCE[torch.float16]


@pytest.fixture
def tf32() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


def conv(x: Tensor, weight: Tensor, grid: tuple[int, int], backend: str) -> Tensor:
    return headwise_conv(x, weight, grid, backend=backend)


GRID = (20, 30) if GPU else (4, 6)
COUNT = GRID[0] * GRID[1]
CASES: list[Any] = [
    pytest.param(inline, lambda: [*tokens(2, COUNT, 2, 16), weights(2, 32)], {"grid": GRID}, id="inline"),
    pytest.param(linear_attention, lambda: tokens(2, COUNT, 2, 16), {}, id="linear"),
    pytest.param(soft, lambda: inputs(2, COUNT, 9, 2, 16), {}, id="soft"),
    pytest.param(
        soft, lambda: inputs(1, COUNT, 70, 1, 16), {"iterations": 20 if GPU else 2}, id="soft, two blocks of landmarks"
    ),
    pytest.param(
        conv,
        lambda: [tokens(2, COUNT, 2, 16)[0], torch.randn(2, 1, 3, 3, device=DEVICE).requires_grad_()],
        {"grid": GRID},
        id="conv",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("function", "made", "options"), CASES)
def test_matches_the_reference_to_ten_bits(function: Any, made: Any, options: dict[str, Any], tf32: None) -> None:
    compare(function, made(), CUT_OFF, **options)


def test_large_means_do_not_cancel(tf32: None) -> None:
    """Tokens are shifted before they are cut off: on a GPU, means of 30 would leave no right digit otherwise."""
    q, k, v = (t.detach() for t in tokens(2, COUNT, 2, 16))
    compare(inline, [x.requires_grad_() for x in (q, k + 30, v + 30)], CUT_OFF, residual=False)


@pytest.mark.slow
@pytest.mark.parametrize(("function", "made", "options"), CASES if GPU else CASES[2:4])
def test_rounds_where_torch_may_and_nowhere_else(function: Any, made: Any, options: dict[str, Any]) -> None:
    """The interpreter rounds nothing by itself, so that on a CPU the points of SOFT alone are rounded."""
    tensors = [t.detach() for t in made()]
    exact = function(*tensors, backend="triton", **options)
    torch.set_float32_matmul_precision("high")
    try:
        rounded = function(*tensors, backend="triton", **options)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert not torch.equal(exact, rounded)
    assert torch.equal(exact, function(*tensors, backend="triton", **options))


def test_points_that_are_equal_stay_so(tf32: None) -> None:
    """Squares are those of the rounded numbers: a token on a landmark has the weight one, however long it is."""
    q = 20 * inputs(1, 8, 8, 1, 16)[0].detach()  # squares of 1,600, which one bit in 2,000 would move by a lot
    apart = torch.eye(8, 16, device=DEVICE).reshape(q.shape)
    out = soft(q, apart, q, backend="triton")
    torch.testing.assert_close(out, apart, atol=2e-3, rtol=0)
