"""The head-wise convolution as a torch operator, `sightline::headwise_conv`."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from sightline.ops.checks import Grid
from sightline.ops.common.arguments import contiguous_heads, dot_precision
from sightline.ops.common.operator import Context, Operator
from sightline.ops.headwise_conv import launch


def headwise_conv(x: Tensor, weight: Tensor, add: Tensor | None, grid: Grid) -> Tensor:
    """x (B, h * w, H, D) with filters (H, 1, k, k), and `add` to the result."""
    added = None if add is None else contiguous_heads(add)
    return _convolve(contiguous_heads(x), weight.contiguous(), added, *grid, False, dot_precision(x.dtype))[0]


def _forward(
    x: Tensor, weight: Tensor, add: Tensor | None, height: int, width: int, flip: bool, dot: str
) -> tuple[Tensor]:
    return (launch.convolve(x, weight, add, (height, width), flip, dot),)


def _weight_gradient(x: Tensor, grad: Tensor, weight: Tensor, height: int, width: int, dot: str) -> tuple[Tensor]:
    return (launch.weight_gradient(x, grad, weight, (height, width), dot),)


def _setup(ctx: Context, inputs: Sequence[Any], output: Sequence[Tensor]) -> None:
    ctx.save_for_backward(*inputs[:2])
    ctx.options = tuple(inputs[3:])


def _gradient(ctx: Context, grad: Tensor) -> tuple[Tensor | None, ...]:
    (x, weight), (height, width, flip, dot) = ctx.saved_tensors, ctx.options
    needs_x, needs_weight, needs_add = ctx.needs_input_grad[:3]
    grad = contiguous_heads(grad)
    dx = _convolve(grad, weight, None, height, width, not flip, dot)[0] if needs_x else None
    dw = None
    if needs_weight:
        (dw,) = _convolve_weight(x, grad, weight, height, width, dot)
        dw = dw.flip(2, 3) if flip else dw
    return dx, dw, grad if needs_add else None, None, None, None, None


def _flops(x: Sequence[int], weight: Sequence[int]) -> int:
    """Two operations per element and tap."""
    return 2 * x[0] * x[1] * x[2] * x[3] * weight[2] * weight[3]


_convolve = Operator(
    "headwise_conv", _forward, flops=lambda x, weight, *_: _flops(x, weight), setup=_setup, backward=_gradient
)
_convolve_weight = Operator(
    "headwise_conv_weight", _weight_gradient, flops=lambda x, grad, weight, *_: _flops(x, weight)
)
