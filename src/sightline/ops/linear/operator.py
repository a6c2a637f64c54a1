"""InLine and linear attention as one torch operator, `sightline::attend`.

It takes q, k and v (B, N, H, D), or the packed projection (B, N, 3 C) of a layer, whose gradient is then written once
and in place. The weights of InLine's residual are given, or made from tokens by two small layers. `bias` is not used:
it is that of the packed projection, whose gradient costs nothing here and a pass over d(q, k, v) elsewhere. `readers`
(B, r, H, D) attend to all keys by softmax, without a gradient: see `launch.Readers`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sightline.ops.common.arguments import contiguous_heads
from sightline.ops.common.launching import empty, views
from sightline.ops.common.operator import Context, Operator
from sightline.ops.linear import launch
from sightline.ops.linear.launch import Images, Layers, Options, Readers


def _forward(
    q: Tensor, k: Tensor | None, v: Tensor | None, weights: Tensor | None, x: Tensor | None, w1: Tensor | None,
    b1: Tensor | None, w2: Tensor | None, b2: Tensor | None, bias: Tensor | None, readers: Tensor | None,
    far_offset: Tensor | None, far_scale: Tensor | None, far_gain: Tensor | None, mask: Tensor | None,
    cu: Tensor | None, grids: Tensor | None, agents: int, window: int, heads: int, longest: int, height: int,
    width: int, prefix: int, scale: float, eps: float, phi: str, linear: bool, dot: str, save: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The mixed values; and with `save` the sums, the weights (images, 9, C) if made, and the mean tokens."""
    packed = k is None
    shape = (*q.shape[:2], q.shape[2] // 3) if packed else q.shape
    q, k, v = _parts(q, k, v, heads)
    layers = None
    if x is not None:
        assert None not in (w1, b1, w2, b2)
        layers = Layers(x, w1, b1, w2, b2, bias)  # type: ignore[arg-type]
    images = Images(mask, cu, grids, longest, (height, width), prefix)
    options = Options(phi, linear, scale, eps, dot)
    far = (far_offset, far_scale, far_gain)
    reading = None if readers is None else Readers(readers, agents, far, window)
    done = launch.forward(q, k, v, weights, layers, images, options, save, shape, reading)
    made = (done.sums, done.weights if x is not None else None, done.mean)
    a, b, c = (t if save and t is not None else empty((0,), torch.float32, q.device) for t in made)
    return done.out, a, b, c


def _backward(
    q: Tensor, k: Tensor | None, v: Tensor | None, grad: Tensor, weights: Tensor | None, w1: Tensor | None,
    b1: Tensor | None, w2: Tensor | None, b2: Tensor | None, bias: Tensor | None, mask: Tensor | None,
    cu: Tensor | None, grids: Tensor | None, sums: Tensor, mean: Tensor, heads: int, longest: int, height: int,
    width: int, prefix: int, scale: float, eps: float, phi: str, linear: bool, dot: str, dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """d(q, k, v) or that of their packed projection, d(weights), d(every token of x) and d(w1, b1, w2, b2, bias).

    Those that do not exist are empty.
    """
    device = q.device
    gradients = [empty(t.shape, t.dtype, device) for t in (q, k, v) if t is not None]
    if k is None:
        packed, grad = grad, grad.unflatten(2, (heads, -1))
        views(packed, grad)
    q, k, v = _parts(q, k, v, heads)
    images = Images(mask, cu, grids, longest, (height, width), prefix)
    options = Options(phi, linear, scale, eps, dot)
    left = launch.backward(q, k, v, grad, weights, sums, images, options, gradients, bias is not None)
    d_weights = empty((0,), q.dtype, device)
    made: Sequence[Tensor] = [empty((0,), q.dtype, device) for _ in range(6)]
    if w1 is not None and b1 is not None and w2 is not None and b2 is not None:
        made = launch.layers_backward(left, mean, (w1, b1, w2, b2), bias, q.shape[1], dtype, heads, dot)
    elif weights is not None and left.taps is not None:
        d_weights = launch.sum_parts(left.taps, weights.dtype)
    dq, dk, dv, *_ = *gradients, *(empty((0,), q.dtype, device) for _ in range(2))
    return dq, dk, dv, d_weights, made[0], made[1], made[2], made[3], made[4], made[5]


def _parts(q: Tensor, k: Tensor | None, v: Tensor | None, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v (B, N, H, D), from the packed (B, N, 3 C) if q is that."""
    if k is None or v is None:
        packed = q
        q, k, v = packed.unflatten(2, (3, heads, -1)).unbind(2)
        views(packed, q, k, v)
    return q, k, v


def _setup(ctx: Context, inputs: Sequence[Any], output: Sequence[Tensor]) -> None:
    q, k, v, weights, x, *rest = inputs
    layers, images, options = rest[:5], rest[9:12], rest[14:-1]
    _, sums, made, mean = output
    ctx.save_for_backward(q, k, v, weights if x is None else made, *layers, *images, sums, mean)
    ctx.options = (*options, q.dtype if x is None else x.dtype)
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _gradient(ctx: Context, grad: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    q, k, v, weights, w1, b1, w2, b2, bias, *rest = ctx.saved_tensors
    options: list[None] = [None] * (9 + len(ctx.options))  # and those of readers and images
    if grad is None:
        return *[None] * 10, *options
    grad = grad.contiguous() if k is None else contiguous_heads(grad)
    dq, dk, dv, d_weights, d_token, *layers, d_bias = attend_backward(
        q, k, v, grad, weights, w1, b1, w2, b2, bias, *rest, *ctx.options
    )
    inputs: list[Tensor | None] = [dq, None, None] if k is None else [dq, dk, dv]
    if w1 is not None:
        d_x, last = d_token.unsqueeze(1).expand(-1, q.shape[1], -1), None if bias is None else d_bias
        return *inputs, None, d_x, *layers, last, *options
    return *inputs, None if weights is None else d_weights, *[None] * 6, *options


def _flops(
    q: Sequence[int], k: Sequence[int] | None, weights: object, w1: Sequence[int] | None,
    readers: Sequence[int] | None, agents: int, window: int, heads: int,
) -> int:  # fmt: skip
    """Products with the state, 2 D operations per element of q and k; nine taps of the residual; the two layers; two
    products of the readers with keys and values, and two of the queries with the agents and their windows."""
    if k is None:
        q = k = (q[0], q[1], heads, q[2] // 3 // heads)
    queries, keys = (shape[0] * shape[1] * shape[2] * shape[3] for shape in (q, k))
    taps = 0 if weights is None and w1 is None else 18 * queries
    layers = 0 if w1 is None else 20 * q[0] * w1[0] * w1[1]
    read = 0 if readers is None else 4 * keys * readers[1] + 4 * queries * (agents + window * window)
    return (queries + keys) * 2 * q[3] + taps + layers + read


def _forward_flops(q, k, v, weights, x, w1, b1, w2, b2, bias, readers, *rest):  # type: ignore[no-untyped-def]
    agents, window, heads = rest[6:9]
    return _flops(q, k, weights, w1, readers, agents, window, heads)


def _backward_flops(q, k, v, grad, weights, w1, b1, w2, b2, bias, mask, cu, grids, sums, mean, heads, *_):  # type: ignore[no-untyped-def]
    return 2 * _flops(q, k, weights, w1, None, 0, 0, heads)


attend = Operator("attend", _forward, flops=_forward_flops, setup=_setup, backward=_gradient)
attend_backward = Operator("attend_backward", _backward, flops=_backward_flops)
