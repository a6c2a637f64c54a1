"""The kernels of SOFT as torch operators, for torch.compile, torch.export, autograd and FLOP counters.

Registered by hand like those of `sightline.ops.linear.operator`, for the same reason.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from sightline.ops.common.registration import (
    LIBRARY,
    Context,
    below_autograd,
    empty_like,
    implements,
    on_device,
    register_gradient,
)
from sightline.ops.soft import launch
from sightline.ops.soft.launch import Call
from sightline.ops.soft.newton import steps_in

IMAGES = "Tensor? mask, Tensor? cu, Tensor? cu_landmarks"
OPTIONS = "SymInt longest, SymInt most, float scale, bool normalized, int iterations"
LIBRARY.define(f"soft_attend(Tensor q, Tensor v, Tensor landmarks, {IMAGES}, {OPTIONS}, bool save) -> (Tensor, Tensor)")
LIBRARY.define(
    f"soft_attend_backward(Tensor q, Tensor v, Tensor landmarks, Tensor grad, {IMAGES}, Tensor saved, {OPTIONS}) "
    "-> (Tensor, Tensor, Tensor)"
)


@implements("soft_attend")
def _soft_attend(
    q: Tensor, v: Tensor, landmarks: Tensor, mask: Tensor | None, cu: Tensor | None, cu_landmarks: Tensor | None,
    longest: int, most: int, scale: float, normalized: bool, iterations: int, save: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """out, and with `save` what backward needs."""
    call = Call(longest, most, scale, normalized, iterations)
    with on_device(q):
        return launch.forward(q, v, landmarks, mask, cu, cu_landmarks, call, save)


@implements("soft_attend_backward")
def _soft_attend_backward(
    q: Tensor, v: Tensor, landmarks: Tensor, grad: Tensor, mask: Tensor | None, cu: Tensor | None,
    cu_landmarks: Tensor | None, saved: Tensor, longest: int, most: int, scale: float, normalized: bool,
    iterations: int,
) -> tuple[Tensor, ...]:  # fmt: skip
    """dq, dv, d(landmarks)."""
    call = Call(longest, most, scale, normalized, iterations)
    with on_device(q):
        return tuple(launch.backward(q, v, landmarks, grad, mask, cu, cu_landmarks, saved, call))


@torch.library.register_fake("sightline::soft_attend", lib=LIBRARY)
def _(q, v, landmarks, mask, cu, cu_landmarks, longest, most, scale, normalized, iterations, save):  # type: ignore[no-untyped-def]
    images = q.shape[0] if cu is None else cu.shape[0] - 1
    shape = launch.saved_shape(images * q.shape[2], most or landmarks.shape[1], q.shape[3], save)
    return *empty_like(q), q.new_empty(shape, dtype=torch.float32)


@torch.library.register_fake("sightline::soft_attend_backward", lib=LIBRARY)
def _(q, v, landmarks, grad, *rest):  # type: ignore[no-untyped-def]
    return empty_like(q, v, landmarks)


class SoftAttend(torch.autograd.Function):
    """`soft_attend` with its gradient."""

    @staticmethod
    def forward(ctx: Context, *inputs: Any) -> tuple[Tensor, Tensor]:
        q, v, landmarks, mask, cu, cu_landmarks, *options, _ = inputs
        with below_autograd():
            out, saved = torch.ops.sightline.soft_attend(*inputs)
        ctx.save_for_backward(q, v, landmarks, mask, cu, cu_landmarks, saved)
        ctx.options = tuple(options)
        ctx.mark_non_differentiable(saved)
        return out, saved

    @staticmethod
    def backward(ctx: Context, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, v, landmarks, *rest = ctx.saved_tensors
        gradients = torch.ops.sightline.soft_attend_backward(q, v, landmarks, grads[0], *rest, *ctx.options)
        return *gradients, None, None, None, *[None] * (len(ctx.options) + 1)


register_gradient("soft_attend", SoftAttend)
soft_attend = torch.ops.sightline.soft_attend


def _flops(
    q_shape: Sequence[int], landmark_shape: Sequence[int], cu_shape: Sequence[int] | None, most: int, products: int,
    squares: int, cubes: int,
) -> int:  # fmt: skip
    """`products` of N x m x d, `squares` of m x m x d, `cubes` of m x m x m, two operations per term.

    Every image of a pack counts with the landmarks of the one that has most.
    """
    batch, tokens, heads, dim = q_shape
    images = batch if cu_shape is None else cu_shape[0] - 1
    m = most or landmark_shape[1]
    return 2 * heads * (products * batch * tokens * m * dim + images * (squares * m * m * dim + cubes * m**3))


@register_flop_formula(torch.ops.sightline.soft_attend)
def _(q, v, landmarks, mask, cu, cu_landmarks, longest, most, scale, normalized, iterations, *args, **kwargs) -> int:  # type: ignore[no-untyped-def]
    return _flops(q, landmarks, cu, most, 3, 2, 2 * steps_in(iterations, torch.float32))


@register_flop_formula(torch.ops.sightline.soft_attend_backward)
def _(q, v, landmarks, grad, mask, cu, cu_landmarks, saved, longest, most, *args, **kwargs) -> int:  # type: ignore[no-untyped-def]
    return _flops(q, landmarks, cu, most, 7, 3, 0)
