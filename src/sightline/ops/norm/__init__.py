"""A sum and its layer norm, whose gradient takes two launches in a compiled training step.

torch's compiler fuses both with their neighbors in the forward pass. In the backward pass it takes eight launches: for
the gradient of the sum and its copy in the dtype of the update, those of the scale and the shift, and that of the bias
of the linear layer before.
"""

import torch
from torch import Tensor

from sightline import backend

if backend.TRITON_INSTALLED:
    from sightline.ops.norm.operator import add_norm_backward


def add_norm(
    x: Tensor, update: Tensor, weight: Tensor, shift: Tensor, eps: float, dtype: torch.dtype, *,
    bias: Tensor | None = None, view: str = "",
) -> tuple[Tensor, ...]:  # fmt: skip
    """x + update and its layer norm; and a view of one of them, whose gradient need not be added to theirs first.

    Args:
        x, update: (B, N, C), each in float32, float16 or bfloat16.
        weight, shift, eps: of the norm.
        dtype: of the norm's result.
        bias: one that `update` has in it, but without a gradient, which is to come from here.
        view: of what there is a view: "norm", "sum", or nothing.
    """
    return _AddNorm.apply(x, update, bias, weight, shift, eps, dtype, view)


def normed_sum(
    x: Tensor, update: Tensor, weight: Tensor, shift: Tensor, eps: float, dtype: torch.dtype | None, *,
    bias: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The layer norm of x + update, as precise as its weight; and in `dtype`, unless None, for a layer that reads it.

    The other arguments are those of `add_norm`.
    """
    return _NormedSum.apply(x, update, bias, weight, shift, eps, dtype)


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, update, bias, weight, shift, eps, dtype, view):  # type: ignore[no-untyped-def]
        total, y = _normed(ctx, x, update, bias, weight, shift, eps)
        y = _cast(y, dtype)
        ctx.view = view
        return (total, y, (y if view == "norm" else total).view_as(y)) if view else (total, y)

    @staticmethod
    def backward(ctx, d_total, dy, extra=None):  # type: ignore[no-untyped-def]
        return *_gradients(ctx, d_total.contiguous(), dy, extra, ctx.view == "sum"), None, None, None


class _NormedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, update, bias, weight, shift, eps, dtype):  # type: ignore[no-untyped-def]
        total, y = _normed(ctx, x, update, bias, weight, shift, eps)
        y = _cast(y, torch.promote_types(total.dtype, weight.dtype))
        if dtype is None:
            return (y,)
        return y, y.view_as(y) if dtype == y.dtype else y.to(dtype)

    @staticmethod
    def backward(ctx, dy, extra=None):  # type: ignore[no-untyped-def]
        return *_gradients(ctx, None, dy, extra, False), None, None


def _normed(ctx, x, update, bias, weight, shift, eps):  # type: ignore[no-untyped-def]
    """The sum, and its norm in float32; what the backward pass needs is saved."""
    total = x + update
    if not total.is_contiguous():
        total = total.contiguous()
    wide, w, b = (_cast(t, torch.float32) for t in (total, weight, shift))
    y, mean, rstd = torch.native_layer_norm(wide, weight.shape, w, b, eps)
    ctx.save_for_backward(total, mean, rstd, weight)
    ctx.dtypes = x.dtype, update.dtype, None if bias is None else bias.dtype
    return total, y


def _gradients(ctx, d_total, dy, extra, raw):  # type: ignore[no-untyped-def]
    """Those of x, the update, the bias, the weight and the shift."""
    dx, d_update, d_weight, d_shift, d_bias = add_norm_backward(
        *ctx.saved_tensors, d_total, dy.contiguous(), extra, raw, *ctx.dtypes
    )
    x, update, bias = ctx.dtypes
    return dx, dx if x == update else d_update, None if bias is None else d_bias, d_weight, d_shift


def _cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Not by a call that may return x itself: torch 2.11 loses gradients of a function of autograd with such calls."""
    return x if x.dtype == dtype else x.to(dtype)
