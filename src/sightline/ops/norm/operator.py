"""The gradient of a sum and its layer norm as a torch operator, `sightline::add_norm_backward`."""

import torch
import triton
from torch import Tensor

from sightline.ops.common.arguments import sym_min
from sightline.ops.common.launching import empty, launch
from sightline.ops.common.operator import Operator
from sightline.ops.norm import kernels

PROGRAMS = 264  # at most: two for each multiprocessor of a large GPU
TILE = 4096  # numbers of a program at a time
SUM_TILE = {"PARTS": 128, "BLOCK": 32}


def _backward(
    total: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, d_total: Tensor | None, dy: Tensor,
    extra: Tensor | None, rows_later: Tensor | None, raw: bool, x: torch.dtype, update: torch.dtype,
    bias: torch.dtype | None, later: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """d(x) in that dtype; d(update), which is empty if it is the same; d(weight), d(shift); and d(bias) and the sum of
    `rows_later`, empty if there are none."""
    batch, tokens, channels = total.shape[0], total.shape[1], int(total.shape[2])
    if extra is not None and extra.stride(2) != 1:
        extra = extra.contiguous()
    rows, width = batch * tokens, triton.next_power_of_2(channels)
    tile = max(1, TILE // width)
    steps = triton.cdiv(rows, sym_min(triton.cdiv(rows, tile), PROGRAMS) * tile)
    programs, device = triton.cdiv(rows, steps * tile), total.device
    dx = empty(total.shape, x, device)
    d_update = empty((0,) if update == x else total.shape, update, device)
    d_weight, d_shift = (empty(weight.shape, weight.dtype, device) for _ in range(2))
    d_bias = empty((0,) if bias is None else weight.shape, weight.dtype if bias is None else bias, device)
    count = 2 if bias is None else 3
    parts = empty((count * programs * channels,), torch.float32, device)
    launch(
        kernels.norm_back, (programs,),
        (total, mean, rstd, weight, d_total, dy, extra, 0 if extra is None else extra.stride(0),
         0 if extra is None else extra.stride(1), dx, None if update == x else d_update, parts, rows, tokens,
         steps),
        {"C": channels, "W": width, "ROWS": tile, "RAW": raw, "BIAS": bias is not None, "num_warps": 4},
    )  # fmt: skip
    shared, size = (0, 0) if rows_later is None else (int(rows_later.shape[0]), int(rows_later.shape[1]))
    d_later = empty((size,), torch.float32 if later is None else later, device)
    launch(
        kernels.norm_sums, (triton.cdiv(max(channels, size), SUM_TILE["BLOCK"]), count + (rows_later is not None)),
        (parts, d_weight, d_shift, None if bias is None else d_bias, rows_later,
         None if rows_later is None else d_later, programs, channels, shared, size),
        {"COUNT": count, **SUM_TILE},
    )  # fmt: skip
    return dx, d_update, d_weight, d_shift, d_bias, d_later


add_norm_backward = Operator("add_norm_backward", _backward, flops=lambda *_: 0)
