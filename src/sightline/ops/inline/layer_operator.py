"""InLine attention of a layer with its projections as one torch operator, `sightline::inline_layer`, for inference."""

from typing import Any

import torch
import triton
from torch import Tensor

from sightline.ops.common.arguments import strides
from sightline.ops.common.launching import Constant, compile_all, empty, launch, recording
from sightline.ops.common.operator import Operator
from sightline.ops.inline import layer_kernels
from sightline.ops.linear.launch import row_size
from sightline.ops.linear.plan import heads_together, padded

TOKENS = 64  # of a tile of the sums
WRITTEN = {True: 16, False: 64}  # of a tile of the output, projected on the way or not
COLUMNS = 16  # of such a tile on the grid
INPUTS = 64  # channels of the tokens that are multiplied at once
PARTS = 64  # chunks of tokens at most
ADDED = 8  # chunks whose sums are loaded at once
FOLDED = 256  # channels up to which the output is projected on the way


def _forward(
    x: Tensor, w: Tensor, b: Tensor | None, w1: Tensor | None, b1: Tensor | None, w2: Tensor | None,
    b2: Tensor | None, p: Tensor, bp: Tensor | None, heads: int, height: int, width: int, prefix: int, scale: float,
    phi: str, dot: str, dtype: torch.dtype,
) -> tuple[Tensor]:  # fmt: skip
    """Tokens (B, N, C), projections (3 C, C) and (C, C) -> (B, N, C), projected if C is at most `FOLDED`."""
    if recording():
        _compile_ahead(x, w, b, w1, b1, w2, b2, p, bp, heads, height, width, prefix, scale, phi, dot, dtype)
    images, tokens, channels, device = x.shape[0], x.shape[1], int(x.shape[2]), x.device
    dim = channels // heads
    together = heads_together(heads, dim, 64)
    wide = padded(together * dim)
    fold = channels <= FOLDED
    residual = w1 is not None
    chunk = TOKENS * triton.cdiv(tokens, TOKENS * PARTS)
    parts = triton.cdiv(tokens, chunk)
    products = torch.bfloat16 if dot == "bf16" else torch.float32
    shared: dict[str, Constant] = {"D": dim, "K": INPUTS, "PHI": phi, "RESIDUAL": residual, "DOT": dot}
    group: dict[str, Constant] = {"GROUP": together, "W": wide}
    v = empty((images, tokens, channels), dtype, device)
    sums = empty((parts, images, row_size(heads, dim)), torch.float32, device)
    sums_x = empty((parts, images, channels), torch.float32, device) if residual else None
    launch(
        layer_kernels.layer_sums, (heads // together, images, parts),
        (*strides(x), w, b, v, sums, sums_x, heads, tokens, chunk),
        {**shared, **group, "T": TOKENS, "num_warps": 8 if wide > 64 else 4, "num_stages": 3},
    )  # fmt: skip
    matrix = empty((images, channels if phi == "identity" else dim, channels), products, device)
    row = empty((images, channels), torch.float32, device)
    weights = empty((images, 9, channels), torch.float32, device) if residual else None
    launch(
        layer_kernels.layer_matrix, (heads, images, 10),
        (sums, sums_x, w, b, w1, b1, w2, b2, matrix, row, weights, heads, tokens, parts, scale),
        {**shared, "W": padded(dim), "PARTS": ADDED, "num_warps": 4 if dim <= 32 else 8},
    )  # fmt: skip
    out = empty((images, tokens, channels), dtype, device)
    height, width = (height, width) if residual else (1, tokens - prefix)
    written = WRITTEN[fold]
    columns = COLUMNS if residual else written
    tiles = triton.cdiv(width, columns) * triton.cdiv(height, written // columns) + (prefix > 0)
    launch(
        layer_kernels.layer_write, (tiles, images) if fold else (tiles, images, heads // together),
        (*strides(x), w, b, v, matrix, row, weights, p, bp, out, heads, tokens, height, width, prefix),
        {**shared, **group, "T": written, "X": columns, "P": triton.next_power_of_2(channels) if fold else 1,
         "FOLD": fold, "num_warps": 4, "num_stages": 3},
    )  # fmt: skip
    return (out,)


_compiled: set[tuple] = set()


def _compile_ahead(*args: Any) -> None:
    """Before the first call of a signature, compile the kernels in parallel."""
    kinds = [t.dtype if isinstance(t, Tensor) else None for t in args[:9]]
    heads, phi, dot = args[9], args[-3], args[-2]
    key = (torch.cuda.current_device(), args[0].shape[2], heads, phi, dot, *kinds)
    if key not in _compiled:
        _compiled.add(key)
        meta: list[Any] = [_meta(t) if isinstance(t, Tensor) else t for t in args]
        compile_all([lambda: _forward(*meta)])


def _meta(t: Tensor) -> Tensor:
    return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta")


def _flops(x, w, b, w1, b1, w2, b2, p, *_):  # type: ignore[no-untyped-def]
    """The products of tokens with C x C matrices: v and k, x M, and the output's projection."""
    batch, tokens, channels = x
    return 2 * batch * tokens * channels * channels * (4 if channels <= FOLDED else 3)


inline_layer = Operator("inline_layer", _forward, flops=_flops)
