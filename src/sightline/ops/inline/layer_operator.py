"""InLine attention of a layer with its projections as one torch operator, `sightline::inline_layer`, for inference."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import triton
from torch import Tensor

from sightline import backend as backends
from sightline.ops.common.arguments import strides
from sightline.ops.common.launching import Constant, compile_all, empty, launch, recording
from sightline.ops.common.operator import Operator
from sightline.ops.inline import layer_kernels
from sightline.ops.linear.launch import row_size
from sightline.ops.linear.plan import heads_together, padded

FEW = 2048  # tokens of a batch below which tiles are small
TOKENS = {True: 32, False: 128}  # of a tile of the sums, for few and for many
NORMED = {True: 32, False: 64}  # tokens normed at once
PROJECTED = {True: (16, 16), False: (32, 8)}  # of a tile of the output, and its columns on the grid
WRITTEN = 64, 16  # the same if the output is not projected on the way
INPUTS = 64  # channels of the tokens that are multiplied at once
PARTS = 64  # chunks of tokens at most
ADDED = 16  # chunks whose sums are loaded at once


def _forward(
    x: Tensor, update: Tensor | None, norm: Tensor | None, shift: Tensor | None, w: Tensor, b: Tensor | None,
    w1: Tensor | None, b1: Tensor | None, w2: Tensor | None, b2: Tensor | None, p: Tensor, bp: Tensor | None,
    heads: int, height: int, width: int, prefix: int, scale: float, eps: float, phi: str, dot: str, dtype: torch.dtype,
) -> tuple[Tensor]:  # fmt: skip
    """Tokens (B, N, C), projections (3 C, C) and (C, C) -> (B, N, C), projected if C is at most `backend.FOLDED`.

    With the weight `norm` and the `shift` of a norm, x plus an `update` is normed first, and added to the output.
    """
    if recording():
        _compile_ahead(x, update, norm, shift, w, b, w1, b1, w2, b2, p, bp,
                       heads, height, width, prefix, scale, eps, phi, dot, dtype)  # fmt: skip
    images, tokens, channels, device = x.shape[0], x.shape[1], int(x.shape[2]), x.device
    dim = channels // heads
    together = heads_together(heads, dim, 64)
    wide = padded(together * dim)
    fold = channels <= backends.FOLDED
    residual, normed = w1 is not None, norm is not None
    few = backends.known(images * tokens < FEW)
    chunk = TOKENS[few] * triton.cdiv(tokens, TOKENS[few] * PARTS)
    parts = triton.cdiv(tokens, chunk)
    products = torch.bfloat16 if dot == "bf16" else torch.float32
    shared: dict[str, Constant] = {"D": dim, "K": INPUTS, "PHI": phi, "RESIDUAL": residual, "DOT": dot}
    group: dict[str, Constant] = {"GROUP": together, "W": wide}
    v = empty((images, tokens, channels), dtype, device)
    y = empty((images, tokens, channels), dtype, device) if normed else x
    sums = empty((parts * images * (row_size(heads, dim) + channels),), torch.float32, device)
    warps = 16 if normed and not few else 4 if few and wide <= 64 else 8
    launch(
        layer_kernels.layer_sums, (heads // together, images, parts),
        (*strides(x), update, norm, shift, eps, y if normed else None, w, b, v, sums, heads, tokens, chunk),
        {**shared, **group, "T": TOKENS[few], "P": padded(channels), "R": NORMED[few],
         "num_warps": warps, "num_stages": 3},
    )  # fmt: skip
    matrix = empty((images, channels if phi == "identity" else dim, channels), products, device)
    weights = empty((images, 10, channels), torch.float32, device)
    launch(
        layer_kernels.layer_matrix, (heads, images, 10),
        (sums, w, b, w1, b1, w2, b2, matrix, weights, heads, tokens, parts, scale),
        {**shared, "W": padded(dim), "PARTS": ADDED, "num_warps": 4 if dim <= 32 else 8},
    )  # fmt: skip
    out = empty((images, tokens, channels), x.dtype if normed else dtype, device)
    height, width = (height, width) if residual else (1, tokens - prefix)
    written, columns = PROJECTED[few] if fold else WRITTEN
    columns = columns if residual else written
    tiles = triton.cdiv(width, columns) * triton.cdiv(height, written // columns) + (prefix > 0)
    launch(
        layer_kernels.layer_write, (tiles, images) if fold else (tiles, images, heads // together),
        (*strides(y), w, b, v, matrix, weights, p, bp, x if normed else None, update, out, heads, tokens, height, width,
         prefix),
        {**shared, **group, "T": written, "X": columns, "P": padded(channels) if fold else 1, "FOLD": fold,
         "num_warps": 4, "num_stages": 3},
    )  # fmt: skip
    return (out,)


_compiled: set[tuple] = set()
SIDES = 8, 64  # of the grids that kernels are compiled for: of few tokens and of many


def _compile_ahead(*args: Any) -> None:
    """Before the first call of a signature, compile the kernels in parallel."""
    kinds = [t.dtype if isinstance(t, Tensor) else None for t in args[:12]]
    x, update, prefix, heads, phi, dot = args[0], args[1], args[15], args[12], args[-3], args[-2]
    key = (torch.cuda.current_device(), x.shape[2], heads, phi, dot, *kinds)
    if key in _compiled:
        return
    _compiled.add(key)
    rest = [_meta(t) if isinstance(t, Tensor) else t for t in args[2:]]
    run: Callable[..., object] = _forward
    calls: list[Callable[[], object]] = []
    for side in SIDES:
        tokens = side * side + prefix
        sized = [None if t is None else _meta(t[:1, :1].expand(1, tokens, -1)) for t in (x, update)]
        calls.append(partial(run, *sized, *rest[:11], side, side, *rest[13:]))
    compile_all(calls)


def _meta(t: Tensor) -> Tensor:
    return torch.empty(t.shape, dtype=t.dtype, device="meta")


def _flops(x, *_):  # type: ignore[no-untyped-def]
    """The products of tokens with C x C matrices: v and k, x M, and the output's projection."""
    batch, tokens, channels = x
    return 2 * batch * tokens * channels * channels * (4 if channels <= backends.FOLDED else 3)


inline_layer = Operator("inline_layer", _forward, flops=_flops)
