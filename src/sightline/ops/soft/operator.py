"""SOFT as a torch operator, `sightline::soft_attend`."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sightline.ops.common.arguments import contiguous_heads
from sightline.ops.common.launching import empty
from sightline.ops.common.operator import Context, Operator
from sightline.ops.soft import launch
from sightline.ops.soft.launch import Call, Options, Saved
from sightline.ops.soft.newton import steps_in


def _forward(
    q: Tensor, v: Tensor, landmarks: Tensor, mask: Tensor | None, cu: Tensor | None, cu_landmarks: Tensor | None,
    longest: int, most: int, scale: float, normalized: bool, iterations: int, dot: str, save: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """out, and with `save` what backward needs."""
    options = Options(scale, normalized, iterations, dot)
    out, saved = launch.forward(Call(q, landmarks, mask, cu, cu_landmarks, longest, most, options), v, save)
    if save:
        return out, *saved
    a, b, c, d = (empty((0,), torch.float32, q.device) for _ in saved)
    return out, a, b, c, d


def _backward(
    q: Tensor, v: Tensor, landmarks: Tensor, grad: Tensor, mask: Tensor | None, cu: Tensor | None,
    cu_landmarks: Tensor | None, sums: Tensor, mixed: Tensor, core: Tensor, degrees: Tensor, longest: int, most: int,
    scale: float, normalized: bool, iterations: int, dot: str,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """dq, dv, d(landmarks)."""
    options = Options(scale, normalized, iterations, dot)
    call = Call(q, landmarks, mask, cu, cu_landmarks, longest, most, options)
    return launch.backward(call, v, grad, Saved(sums, mixed, core, degrees))


def _setup(ctx: Context, inputs: Sequence[Any], output: Sequence[Tensor]) -> None:
    ctx.save_for_backward(*inputs[:6], *output[1:])
    ctx.options = tuple(inputs[6:-1])
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _gradient(ctx: Context, grad: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    q, v, landmarks, *rest = ctx.saved_tensors
    nothing = [None] * (3 + len(ctx.options) + 1)
    if grad is None:
        return None, None, None, *nothing
    return *soft_attend_backward(q, v, landmarks, contiguous_heads(grad), *rest, *ctx.options), *nothing


def _flops(
    q: Sequence[int], landmarks: Sequence[int], cu: Sequence[int] | None, most: int, products: int, squares: int,
    cubes: int,
) -> int:  # fmt: skip
    """`products` of N x m x d, `squares` of m x m x d, `cubes` of m x m x m, two operations per term.

    Every image of a pack counts with the landmarks of the one that has most.
    """
    batch, tokens, heads, dim = q
    images = batch if cu is None else cu[0] - 1
    m = most or landmarks[1]
    return 2 * heads * (products * batch * tokens * m * dim + images * (squares * m * m * dim + cubes * m**3))


def _forward_flops(q, v, landmarks, mask, cu, cu_landmarks, longest, most, scale, normalized, iterations, *_):  # type: ignore[no-untyped-def]
    return _flops(q, landmarks, cu, most, 3, 2, 2 * steps_in(iterations, torch.float32))


def _backward_flops(q, v, landmarks, grad, mask, cu, cu_landmarks, sums, mixed, core, degrees, longest, most, *_):  # type: ignore[no-untyped-def]
    return _flops(q, landmarks, cu, most, 7, 3, 0)


soft_attend = Operator("soft_attend", _forward, flops=_forward_flops, setup=_setup, backward=_gradient)
soft_attend_backward = Operator("soft_attend_backward", _backward, flops=_backward_flops)
