"""InLine attention of a layer: the operator also makes the weights of its residual from the tokens."""

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from sightline import backend as backends
from sightline.ops.checks import Grid
from sightline.ops.common.arguments import contiguous_heads, dot_precision
from sightline.ops.common.operator import needs_gradient
from sightline.ops.inline.layer_operator import inline_layer
from sightline.ops.linear.operator import attend

NO_FAR: tuple[Tensor | None, ...] = (None, None, None)


class ResidualLayers(NamedTuple):
    """The layers that make the weights of the residual from the mean token: (C, D), (C,), (9 C, D), (9 C,)."""

    w1: Tensor
    b1: Tensor
    w2: Tensor
    b2: Tensor


def inline_from_packed(
    qkv: Tensor, x: Tensor, layers: ResidualLayers | None, heads: int, grid: Grid, prefix: int, phi: str,
    bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The packed projection (B, N, 3 C) of the tokens x (B, N, C) -> (B, N, C), with the usual scale.

    `bias` is that of the projection, if its gradient is to come from here.
    """
    qkv = qkv if qkv.stride(2) == 1 else qkv.contiguous()
    return _attend(qkv, None, None, x, layers, heads, qkv.shape[2] // 3 // heads, grid, prefix, phi, bias)


def project_packed(x: Tensor, qkv: nn.Linear, layers: ResidualLayers | None, phi: str) -> tuple[Tensor, Tensor | None]:
    """The packed projection of the tokens, and its bias if `inline_from_packed` is to give the bias its gradient."""
    bias = qkv.bias
    if type(qkv) is not nn.Linear or layers is None or phi != "identity" or not needs_gradient(bias):
        return qkv(x), None
    return F.linear(x, qkv.weight, bias.detach()), bias


def inline_from_parts(
    q: Tensor, k: Tensor, v: Tensor, x: Tensor, layers: ResidualLayers | None, grid: Grid, prefix: int, phi: str,
    readers: Tensor | None = None, agents: int = 0, far: tuple[Tensor | None, ...] = NO_FAR, window: int = 0,
) -> Tensor:  # fmt: skip
    """q, k and v (B, N, H, D) and the tokens x (B, N, C) -> (B, N, H, D), with the usual scale.

    `readers` (B, r, H, D) attend to all keys by softmax, without a gradient. All tokens ask the first `agents` of them;
    the others are the queries of the first tokens, which get what they gather. With a `window`, tokens ask their window
    by the same softmax, in which agents have keys by `far`: (H, D), (H, 1) and (H, 1).
    """
    q, k, v = contiguous_heads(q), contiguous_heads(k), contiguous_heads(v)
    return _attend(q, k, v, x, layers, q.shape[2], q.shape[3], grid, prefix, phi, None, readers, agents, far, window)


def _attend(
    q: Tensor, k: Tensor | None, v: Tensor | None, x: Tensor, layers: ResidualLayers | None, heads: int, dim: int,
    grid: Grid, prefix: int, phi: str, bias: Tensor | None = None, readers: Tensor | None = None, agents: int = 0,
    far: tuple[Tensor | None, ...] = NO_FAR, window: int = 0,
) -> Tensor:  # fmt: skip
    made: tuple[Tensor | None, ...] = (None,) * 6
    if layers is None:
        grid = grid if window else (0, 0)
    else:
        made = (x if x.stride(2) == 1 else x.contiguous(), *layers, bias)
    return attend(
        q, k, v, None, *made, None if readers is None else readers.contiguous(), *far, None, None, None, agents,
        window, heads, 0,
        *grid, prefix, dim**-0.5, 0.0, phi, False, dot_precision(q.dtype), needs_gradient(q, k, v, *made),
    )[0]  # fmt: skip


def inline_projected(
    x: Tensor, qkv: nn.Linear, proj: nn.Linear, layers: ResidualLayers | None, heads: int, grid: Grid, prefix: int,
    phi: str, norm: nn.LayerNorm | None = None, update: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Tokens x (B, N, C) -> (B, N, C), projected, mixed and projected again; without a gradient.

    With a `norm`, for at most `backend.FOLDED` channels, x plus an `update` is normed first, and added to the output.
    """
    dtype = backends.compute_dtype(x)
    weight, shift, eps = None, None, 0.0
    if norm is None:
        x = x if x.stride(2) == 1 else x.contiguous()
    else:
        x, update = x.contiguous(), None if update is None else update.contiguous()
        weight, shift, eps = norm.weight.contiguous(), norm.bias.contiguous(), norm.eps
    made: tuple[Tensor | None, ...] = (None,) * 4 if layers is None else layers
    out = inline_layer(
        x, update, weight, shift, qkv.weight, qkv.bias, *made, proj.weight, proj.bias,
        heads, *grid, prefix, (x.shape[2] // heads) ** -0.5, eps, phi, dot_precision(dtype), dtype,
    )[0]  # fmt: skip
    return out if x.shape[2] <= backends.FOLDED else F.linear(out, proj.weight, proj.bias)
