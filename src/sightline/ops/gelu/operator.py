"""The gradient of GELU as a torch operator, `sightline::gelu_backward`."""

import torch
import triton
from torch import Tensor

from sightline.ops.common.launching import empty, launch
from sightline.ops.common.operator import Operator
from sightline.ops.gelu import kernels

PROGRAMS = 1056  # eight for each multiprocessor of a large GPU
TILE = {"ROWS": 16, "BLOCK": 128}


def sharers(channels: int) -> int:
    """How many programs share the rows; a number that does not depend on them, as models are traced with it."""
    return max(1, PROGRAMS // (-(-channels // TILE["BLOCK"])))


def _backward(x: Tensor, dy: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    """dx, in the dtype of x, and its sums over the rows of every program, (programs, channels) in float32.

    x and dy are contiguous.
    """
    channels = int(x.shape[-1])
    rows, programs = x.numel() // channels, sharers(channels)
    dx = empty(x.shape, x.dtype, x.device)
    parts = empty((programs, channels), torch.float32, x.device)
    steps = triton.cdiv(rows, programs * TILE["ROWS"])
    launch(
        kernels.gelu_back, (triton.cdiv(channels, TILE["BLOCK"]), programs), (x, dy, dx, parts, rows, steps),
        {"C": channels, "TANH": tanh, "num_warps": 4, **TILE},
    )  # fmt: skip
    return dx, parts


gelu_backward = Operator("gelu_backward", _backward, flops=lambda *_: 0)
