"""The kernels of InLine and linear attention as torch operators.

`sightline::attend` takes q, k and v, `sightline::attend_packed` the packed tensor (B, N, 3, H, D) they are views of, so
that its gradient is written once and in place.
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
from sightline.ops.linear import launch
from sightline.ops.linear.launch import Call

OPTIONS = "SymInt longest, SymInt height, SymInt width, SymInt prefix, float scale, float eps, str phi, bool linear"
PACKED_OPTIONS = "SymInt height, SymInt width, SymInt prefix, float scale, str phi"
IMAGES = "Tensor? residual, Tensor? mask, Tensor? cu, Tensor? grids"
SCHEMAS = {
    "attend": f"(Tensor q, Tensor k, Tensor v, {IMAGES}, {OPTIONS}, bool save) -> (Tensor, Tensor)",
    "attend_backward": f"(Tensor q, Tensor k, Tensor v, Tensor grad, {IMAGES}, Tensor sums, {OPTIONS}) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    "attend_packed": f"(Tensor qkv, Tensor? residual, Tensor? mask, {PACKED_OPTIONS}, bool save) -> (Tensor, Tensor)",
    "attend_packed_backward": f"(Tensor qkv, Tensor grad, Tensor? residual, Tensor? mask, Tensor sums, "
    f"{PACKED_OPTIONS}) -> (Tensor, Tensor)",
}
for _name, _schema in SCHEMAS.items():
    LIBRARY.define(_name + _schema)


@implements("attend")
def _attend(
    q: Tensor, k: Tensor, v: Tensor, residual: Tensor | None, mask: Tensor | None, cu: Tensor | None,
    grids: Tensor | None, longest: int, height: int, width: int, prefix: int, scale: float, eps: float, phi: str,
    linear: bool, save: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """out, and with `save` the sums that backward needs."""
    call = Call(phi, linear, scale, eps, prefix, (height, width), longest)
    with on_device(q):
        return launch.forward(q, k, v, residual, mask, cu, grids, call, save)


@implements("attend_packed")
def _attend_packed(
    qkv: Tensor, residual: Tensor | None, mask: Tensor | None, height: int, width: int, prefix: int, scale: float,
    phi: str, save: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """InLine attention of qkv (B, N, 3, H, D): out, and with `save` the sums that backward needs."""
    q, k, v = qkv.unbind(2)
    call = Call(phi, False, scale, 0.0, prefix, (height, width), 0)
    with on_device(q):
        return launch.forward(q, k, v, residual, mask, None, None, call, save)


@implements("attend_backward")
def _attend_backward(
    q: Tensor, k: Tensor, v: Tensor, grad: Tensor, residual: Tensor | None, mask: Tensor | None, cu: Tensor | None,
    grids: Tensor | None, sums: Tensor, longest: int, height: int, width: int, prefix: int, scale: float, eps: float,
    phi: str, linear: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """dq, dk, dv, and d(residual), empty without a residual."""
    dq, dk, dv = empty_like(q, k, v)
    call = Call(phi, linear, scale, eps, prefix, (height, width), longest)
    with on_device(q):
        dw = launch.backward(q, k, v, grad, residual, mask, cu, grids, sums, call, (dq, dk, dv))
    return dq, dk, dv, dw


@implements("attend_packed_backward")
def _attend_packed_backward(
    qkv: Tensor, grad: Tensor, residual: Tensor | None, mask: Tensor | None, sums: Tensor, height: int, width: int,
    prefix: int, scale: float, phi: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """d(qkv), and d(residual), empty without a residual."""
    q, k, v = qkv.unbind(2)
    (packed,) = empty_like(qkv)
    call = Call(phi, False, scale, 0.0, prefix, (height, width), 0)
    with on_device(q):
        dw = launch.backward(q, k, v, grad, residual, mask, None, None, sums, call, packed.unbind(2))
    return packed, dw


def _forward_shapes(q: Tensor, cu: Tensor | None, save: bool) -> tuple[Tensor, Tensor]:
    images = q.shape[0] if cu is None else cu.shape[0] - 1
    sums = q.new_empty((images if save else 0, launch.row_size(*q.shape[2:])), dtype=torch.float32)
    return empty_like(q)[0], sums


@torch.library.register_fake("sightline::attend", lib=LIBRARY)
def _(q, k, v, residual, mask, cu, grids, longest, height, width, prefix, scale, eps, phi, linear, save):  # type: ignore[no-untyped-def]
    return _forward_shapes(q, cu, save)


@torch.library.register_fake("sightline::attend_packed", lib=LIBRARY)
def _(qkv, residual, mask, height, width, prefix, scale, phi, save):  # type: ignore[no-untyped-def]
    return _forward_shapes(qkv[:, :, 0], None, save)


def _weight_shape(q: Tensor, residual: Tensor | None) -> Tensor:
    if residual is None:
        return q.new_empty(0)
    images, channels = residual.shape[:2]
    return residual.new_empty(images, 3, 3, channels).permute(0, 3, 1, 2)


@torch.library.register_fake("sightline::attend_backward", lib=LIBRARY)
def _(q, k, v, grad, residual, mask, cu, grids, sums, longest, height, width, prefix, scale, eps, phi, linear):  # type: ignore[no-untyped-def]
    return *empty_like(q, k, v), _weight_shape(q, residual)


@torch.library.register_fake("sightline::attend_packed_backward", lib=LIBRARY)
def _(qkv, grad, residual, mask, sums, height, width, prefix, scale, phi):  # type: ignore[no-untyped-def]
    return *empty_like(qkv), _weight_shape(qkv, residual)


class Attend(torch.autograd.Function):
    """`attend` with its gradient."""

    @staticmethod
    def forward(ctx: Context, *inputs: Any) -> tuple[Tensor, Tensor]:
        q, k, v, residual, mask, cu, grids, *options, _ = inputs
        with below_autograd():
            out, sums = torch.ops.sightline.attend(*inputs)
        ctx.save_for_backward(q, k, v, residual, mask, cu, grids, sums)
        ctx.options = tuple(options)
        ctx.mark_non_differentiable(sums)
        return out, sums

    @staticmethod
    def backward(ctx: Context, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, residual, mask, cu, grids, sums = ctx.saved_tensors
        inputs = (q, k, v, grads[0], residual, mask, cu, grids, sums, *ctx.options)
        dq, dk, dv, dw = torch.ops.sightline.attend_backward(*inputs)
        return dq, dk, dv, None if residual is None else dw, None, None, None, *[None] * (len(ctx.options) + 1)


class AttendPacked(torch.autograd.Function):
    """`attend_packed` with its gradient."""

    @staticmethod
    def forward(ctx: Context, *inputs: Any) -> tuple[Tensor, Tensor]:
        qkv, residual, mask, *options, _ = inputs
        with below_autograd():
            out, sums = torch.ops.sightline.attend_packed(*inputs)
        ctx.save_for_backward(qkv, residual, mask, sums)
        ctx.options = tuple(options)
        ctx.mark_non_differentiable(sums)
        return out, sums

    @staticmethod
    def backward(ctx: Context, *grads: Tensor) -> tuple[Tensor | None, ...]:
        qkv, residual, mask, sums = ctx.saved_tensors
        d_qkv, dw = torch.ops.sightline.attend_packed_backward(qkv, grads[0], residual, mask, sums, *ctx.options)
        return d_qkv, None if residual is None else dw, None, *[None] * (len(ctx.options) + 1)


register_gradient("attend", Attend)
register_gradient("attend_packed", AttendPacked)

attend = torch.ops.sightline.attend
attend_packed = torch.ops.sightline.attend_packed


def _flops(q_shape: Sequence[int], k_shape: Sequence[int], residual_shape: Sequence[int] | None, passes: int) -> int:
    """Products with the state, 2 D operations per element and pass over q or k, and nine taps of the residual."""
    queries, keys = (shape[0] * shape[1] * shape[2] * shape[3] for shape in (q_shape, k_shape))
    taps = 0 if residual_shape is None else 18 * queries
    return passes * ((queries + keys) * 2 * q_shape[3] + taps)


@register_flop_formula(torch.ops.sightline.attend)
def _(q, k, v, residual, *args, out_shape=None, **kwargs) -> int:  # type: ignore[no-untyped-def]
    return _flops(q, k, residual, 1)


@register_flop_formula(torch.ops.sightline.attend_packed)
def _(qkv, residual, *args, out_shape=None, **kwargs) -> int:  # type: ignore[no-untyped-def]
    tokens = (*qkv[:2], *qkv[3:])
    return _flops(tokens, tokens, residual, 1)


@register_flop_formula(torch.ops.sightline.attend_backward)
def _(q, k, v, grad, residual, *args, out_shape=None, **kwargs) -> int:  # type: ignore[no-untyped-def]
    return _flops(q, k, residual, 2)


@register_flop_formula(torch.ops.sightline.attend_packed_backward)
def _(qkv, grad, residual, *args, out_shape=None, **kwargs) -> int:  # type: ignore[no-untyped-def]
    tokens = (*qkv[:2], *qkv[3:])
    return _flops(tokens, tokens, residual, 2)
