"""InLine attention from the tokens equals projecting them and running the operator, gradients included."""

import pytest
import torch
from torch import Tensor

from sightline.ops import inline_attention
from sightline.ops.inline.projected import inline_from_tokens


def projected_then_attended(x: Tensor, weight: Tensor, bias: Tensor | None, heads: int, residual: Tensor | None,
                            grid: tuple[int, int], prefix: int) -> Tensor:  # fmt: skip
    qkv = torch.nn.functional.linear(x, weight, bias).unflatten(-1, (3, heads, -1))
    return inline_attention(*qkv.unbind(2), residual=residual, grid=grid, prefix=prefix).flatten(2)


@pytest.mark.parametrize(("batch", "grid", "prefix"), [(1, (3, 5), 0), (3, (4, 7), 1), (2, (1, 1), 2), (1, (2, 3), 0)])
@pytest.mark.parametrize("heads", [1, 2, 3])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("with_residual", [True, False])
def test_outputs_and_gradients(
    batch: int, grid: tuple[int, int], prefix: int, heads: int, with_bias: bool, with_residual: bool
) -> None:
    dim = 6 * heads
    make = torch.Generator().manual_seed(3)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=make, dtype=torch.float64).requires_grad_()

    x, weight = random(batch, prefix + grid[0] * grid[1], dim), random(3 * dim, dim)
    bias = random(3 * dim) if with_bias else None
    residual = random(batch, dim, 3, 3) if with_residual else None
    inputs = [t for t in (x, weight, bias, residual) if t is not None]
    got = inline_from_tokens(x, weight, bias, heads, residual, grid, prefix)
    want = projected_then_attended(x, weight, bias, heads, residual, grid, prefix)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)
    grad = torch.randn(got.shape, generator=make, dtype=torch.float64)
    for a, b in zip(torch.autograd.grad(got, inputs, grad), torch.autograd.grad(want, inputs, grad), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)
