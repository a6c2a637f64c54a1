"""Gathering patches as a torch operator, `sightline::gather_patches`, for inference."""

import triton
from torch import Tensor

from sightline.ops.common.launching import empty, launch
from sightline.ops.common.operator import Operator
from sightline.ops.patches import kernels

BLOCK = 1024  # numbers of a program


def _gather(x: Tensor, height: int, width: int, down: int, across: int, by_column: bool) -> tuple[Tensor]:
    batch, channels = x.shape[0], int(x.shape[2])
    rows, columns = triton.cdiv(height, down), triton.cdiv(width, across)
    out = empty((batch, rows * columns, down * across * channels), x.dtype, x.device)
    launch(
        kernels.gather, (triton.cdiv(columns * across * channels, BLOCK), rows * down, batch),
        (x, out, height, width, rows, columns),
        {"C": channels, "DOWN": down, "ACROSS": across, "BY_COLUMN": by_column, "BLOCK": BLOCK, "num_warps": 4},
    )  # fmt: skip
    return (out,)


gather = Operator("gather_patches", _gather, flops=lambda *_: 0)
