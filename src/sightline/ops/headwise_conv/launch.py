"""Launches of the kernels of the head-wise convolution; nothing is tuned at run time."""

import torch
import triton
from torch import Tensor

from sightline import backend
from sightline.ops.checks import Grid
from sightline.ops.common.arguments import head_shape, strides
from sightline.ops.common.kernels import add_parts
from sightline.ops.common.launching import Constant, empty, launch
from sightline.ops.headwise_conv import kernels

ROWS = 28  # grid rows of a piece
GRADIENT_ROWS = 56  # in the gradient of the filters
SUM_TILE = {"PARTS": 64, "BLOCK": 64}  # of the sum of that gradient over pieces and images


def convolve(x: Tensor, weight: Tensor, add: Tensor | None, grid: Grid, flip: bool, dot: str) -> Tensor:
    """`add` plus the convolution of x, with the filters turned by 180 degrees if `flip`."""
    heads, size = x.shape[2], weight.shape[3]
    constants = _constants(x, size, grid[1], dot)
    out = empty(x.shape, x.dtype, x.device)
    added = (None, 0, 0) if add is None else strides(add)
    launch(
        kernels.conv, (x.shape[0] * heads, _pieces(grid, size, constants, ROWS)),
        (*strides(x), weight, *added, *strides(out), heads, *grid, ROWS),
        {**constants, "FLIP": flip, "ADD": add is not None},
    )  # fmt: skip
    return out


def weight_gradient(x: Tensor, grad: Tensor, weight: Tensor, grid: Grid, dot: str) -> Tensor:
    """The gradient of the filters, like `weight`."""
    batch, _, heads, _ = x.shape
    size = weight.shape[3]
    constants = {**_constants(x, size, grid[1], dot), "num_stages": 2}
    pieces = _pieces(grid, size, constants, GRADIENT_ROWS)
    parts = empty((pieces * batch, *weight.shape), torch.float32, x.device)
    launch(
        kernels.conv_weights, (batch * heads, pieces, triton.cdiv(size, 3)),
        (*strides(x), *strides(grad), parts, heads, *grid, GRADIENT_ROWS), constants,
    )  # fmt: skip
    out = empty(weight.shape, weight.dtype, x.device)
    count = out.numel()
    launch(add_parts, (triton.cdiv(count, SUM_TILE["BLOCK"]),), (parts, out, pieces * batch, count), SUM_TILE)
    return out


def _constants(x: Tensor, size: int, width: int, dot: str) -> dict[str, Constant]:
    """The k bands of a filter and k patches of every stage have to fit into shared memory."""
    dim, size = head_shape(x)[1], int(size)
    channels = max(16, triton.next_power_of_2(dim))
    if x.dtype == torch.bfloat16:
        tokens, stages = 64, 2 if size <= 7 and channels * size <= 64 * 7 else 1
    else:
        tokens, stages = 32 if channels <= 64 else 16, 2 if channels <= 64 else 1
    shared = backend.shared_memory(x.device)
    if shared < backend.LARGE and channels * size > 64 * 9:
        tokens = min(tokens, 32)
    if shared < backend.MEDIUM and size >= 7:
        stages = 1
    columns = next((c for c in (16, 32) if c < tokens and backend.known(width <= c)), tokens)
    return {
        "D": dim, "W": channels, "X": columns, "T": tokens, "K": size, "DOT": dot, "num_warps": 4,
        "num_stages": stages,
    }  # fmt: skip


def _pieces(grid: Grid, size: int, constants: dict[str, Constant], rows: int) -> int:
    """How many pieces there are; more than that for a width that may have any value, which have nothing to do."""
    (height, width), columns = grid, int(constants["X"])
    stride = columns if backend.known(width <= columns) else columns - (size - 1)
    return triton.cdiv(width, stride) * triton.cdiv(height, rows)
