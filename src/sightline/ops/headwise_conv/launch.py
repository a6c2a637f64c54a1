"""Launches of the kernels of the head-wise convolution; nothing is tuned at run time."""

import torch
import triton
from torch import Tensor

from sightline.ops.checks import Grid
from sightline.ops.common.arguments import HeadFilters, Tokens
from sightline.ops.common.launching import Constants, Layout, Program, products, program_for
from sightline.ops.headwise_conv import kernels

ROWS = 28  # grid rows of a piece
GRADIENT_ROWS = 56  # in the gradient of the filters
SUM_TILE = {"PARTS": 64, "BLOCK": 64}  # of the sum of that gradient over pieces and images


def _constants(x: Layout, size: int, width: int) -> Constants:
    """The k bands of a filter and k patches of every stage have to fit into shared memory."""
    channels = max(16, triton.next_power_of_2(x.shape[3]))
    if x.dtype == torch.bfloat16:
        tokens, stages = 64, 2 if size <= 7 and channels * size <= 64 * 7 else 1
    else:
        tokens, stages = 32 if channels <= 64 else 16, 2 if channels <= 64 else 1
    return {
        "D": x.shape[3], "W": channels, "X": min(tokens, max(16, triton.next_power_of_2(width))), "T": tokens,
        "K": size, "DOT": products(x.dtype), "num_warps": 4, "num_stages": stages,
    }  # fmt: skip


def _pieces(grid: Grid, size: int, constants: Constants, rows: int) -> int:
    (height, width), columns = grid, int(constants["X"])
    stride = columns - (size - 1) if width > columns else columns
    return triton.cdiv(width, stride) * triton.cdiv(height, rows)


def convolve(x: Tensor, weight: Tensor, add: Tensor | None, grid: Grid, flip: bool) -> Tensor:
    """add + the convolution of x; `flip` turns the filters by 180 degrees."""
    inputs = (x, weight, add)
    program = program_for("conv", inputs, (grid, flip), lambda *layouts: _convolve(*layouts, grid=grid, flip=flip))
    return program(inputs, x.device)[0]


def weight_gradient(x: Tensor, grad: Tensor, weight: Tensor, grid: Grid) -> Tensor:
    """The gradient of the filters, like `weight`."""
    inputs = (x, grad, weight)
    program = program_for("conv_weights", inputs, (grid,), lambda *layouts: _weight_gradient(*layouts, grid=grid))
    return program(inputs, x.device)[0].view(weight.shape)


def _convolve(x: Layout, weight: Layout, add: Layout | None, *, grid: Grid, flip: bool) -> Program:
    heads, size = x.shape[2], weight.shape[3]
    constants = _constants(x, size, grid[1])
    program = Program(3)
    out = program.buffer(x.shape, x.dtype)
    program.results = (out.slot,)
    program.launch(
        kernels.conv, (x.shape[0] * heads, _pieces(grid, size, constants, ROWS)),
        (Tokens.of(x), HeadFilters.of(weight), Tokens.of(add), Tokens.of(out), heads, *grid, ROWS),
        {**constants, "FLIP": flip, "ADD": add is not None},
    )  # fmt: skip
    return program


def _weight_gradient(x: Layout, grad: Layout, weight: Layout, *, grid: Grid) -> Program:
    batch, _, heads, _ = x.shape
    size = weight.shape[3]
    constants: Constants = {**_constants(x, size, grid[1]), "num_stages": 2}
    pieces = _pieces(grid, size, constants, GRADIENT_ROWS)
    program = Program(3)
    parts = program.buffer((pieces * batch, *weight.shape), torch.float32)
    program.launch(
        kernels.conv_weights, (batch * heads, pieces, triton.cdiv(size, 3)),
        (Tokens.of(x), Tokens.of(grad), parts, heads, *grid, GRADIENT_ROWS), constants,
    )  # fmt: skip
    program.results = (program.add_up(parts, weight.dtype, SUM_TILE).slot,)
    return program
