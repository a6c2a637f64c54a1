"""Launches the kernels of the head-wise convolution; nothing is tuned at run time."""

from typing import Any

import torch
import triton
from torch import Tensor

from sightline.ops.checks import Grid
from sightline.ops.fused.launch import PRODUCTS
from sightline.ops.fused.launcher import run
from sightline.ops.headwise_conv import kernels

SIZES = (3, 5, 7, 9)  # of the filters that the kernels take
ROWS = 28  # grid rows of a piece
GRADIENT_ROWS = 56  # in the gradient of the filters


def _constants(x: Tensor, size: int, width: int) -> dict[str, Any]:
    """The k bands of a filter and k patches of every stage have to fit into shared memory."""
    channels = max(16, triton.next_power_of_2(x.shape[3]))
    if x.dtype == torch.bfloat16:
        tokens, stages = 64, 2 if size <= 7 and channels * size <= 64 * 7 else 1
    else:
        tokens, stages = 32 if channels <= 64 else 16, 2 if channels <= 64 else 1
    return {
        "D": x.shape[3], "W": channels, "X": min(tokens, max(16, triton.next_power_of_2(width))), "T": tokens,
        "K": size, "DOT": PRODUCTS[x.dtype], "num_warps": 4, "num_stages": stages,
    }  # fmt: skip


def _pieces(grid: Grid, size: int, columns: int, rows: int) -> int:
    height, width = grid
    stride = columns - (size - 1) if width > columns else columns
    return triton.cdiv(width, stride) * triton.cdiv(height, rows)


def convolve(x: Tensor, weight: Tensor, add: Tensor | None, grid: Grid, flip: bool) -> Tensor:
    """add + the convolution of x; `flip` turns the filters by 180 degrees."""
    heads, size = x.shape[2], weight.shape[3]
    constants = _constants(x, size, grid[1])
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    steps = (weight.stride(0), weight.stride(2), weight.stride(3))
    run(
        kernels.conv, (x.shape[0] * heads, _pieces(grid, size, constants["X"], ROWS)),
        (x, weight, add, out, *x.stride(), *steps, *(out if add is None else add).stride(), *out.stride()[:3], heads,
         *grid, ROWS),
        {**constants, "FLIP": flip, "ADD": add is not None},
    )  # fmt: skip
    return out


def weight_gradient(x: Tensor, grad: Tensor, weight: Tensor, grid: Grid) -> Tensor:
    """The gradient of the filters, like `weight`."""
    batch, _, heads, _ = x.shape
    size = weight.shape[3]
    constants = {**_constants(x, size, grid[1]), "num_stages": 2}
    pieces = _pieces(grid, size, constants["X"], GRADIENT_ROWS)
    parts = torch.empty(pieces, batch, heads, 1, size, size, dtype=torch.float32, device=x.device)
    run(
        kernels.conv_weights, (batch * heads, pieces, triton.cdiv(size, 3)),
        (x, grad, parts, *x.stride(), *grad.stride(), heads, *grid, GRADIENT_ROWS), constants,
    )  # fmt: skip
    return parts.sum((0, 1)).to(weight.dtype)
