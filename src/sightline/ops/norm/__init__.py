"""A sum and its layer norm, whose gradient takes two launches in a compiled training step.

torch's compiler fuses both with their neighbors in the forward pass. In the backward pass it takes eight launches: for
the gradient of the sum and its copy in the dtype of the update, those of the scale and the shift, and that of the bias
of the linear layer before.
"""

import torch
from torch import Tensor

from sightline import backend

if backend.TRITON_INSTALLED:
    from sightline.ops.gelu.operator import sharers
    from sightline.ops.norm.operator import add_norm_backward


def add_norm(
    x: Tensor, update: Tensor, weight: Tensor, shift: Tensor, eps: float, dtype: torch.dtype, *,
    bias: Tensor | None = None, view: str = "", later: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """x + update and its layer norm; and a view of one of them, whose gradient need not be added to theirs first.

    Args:
        x, update: (B, N, C), each in float32, float16 or bfloat16.
        weight, shift, eps: of the norm.
        dtype: of the norm's result.
        bias: one that `update` has in it, but without a gradient, which is to come from here.
        view: of what there is a view: "norm", "sum", or nothing.
        later: the bias before a GELU that follows. The last result is then one for `gelu_of_biased`, and the parts of
            the bias's gradient that come from there are summed here.
    """
    return _AddNorm.apply(x, update, bias, weight, shift, later, eps, dtype, view)


def normed_sum(
    x: Tensor, update: Tensor, weight: Tensor, shift: Tensor, eps: float, dtype: torch.dtype | None, *,
    bias: Tensor | None = None, later: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The layer norm of x + update, as precise as its weight; and in `dtype`, unless None, for a layer that reads it.

    The other arguments are those of `add_norm`.
    """
    return _NormedSum.apply(x, update, bias, weight, shift, later, eps, dtype)


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, update, bias, weight, shift, later, eps, dtype, view):  # type: ignore[no-untyped-def]
        total, y = _normed(ctx, x, update, bias, weight, shift, later, eps)
        y = _cast(y, dtype)
        ctx.view = view
        views = ((y if view == "norm" else total).view_as(y),) if view else ()
        return total, y, *views, *_parts(later)

    @staticmethod
    def backward(ctx, d_total, dy, *others):  # type: ignore[no-untyped-def]
        extra = others[0] if ctx.view else None
        return *_gradients(ctx, d_total.contiguous(), dy, extra, ctx.view == "sum", others), None, None, None


class _NormedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, update, bias, weight, shift, later, eps, dtype):  # type: ignore[no-untyped-def]
        total, y = _normed(ctx, x, update, bias, weight, shift, later, eps)
        y = _cast(y, torch.promote_types(total.dtype, weight.dtype))
        ctx.read = dtype is not None
        if dtype is None:
            return (y, *_parts(later))
        return y, y.view_as(y) if dtype == y.dtype else y.to(dtype), *_parts(later)

    @staticmethod
    def backward(ctx, dy, *others):  # type: ignore[no-untyped-def]
        extra = others[0] if ctx.read else None
        return *_gradients(ctx, None, dy, extra, False, others), None, None


def _normed(ctx, x, update, bias, weight, shift, later, eps):  # type: ignore[no-untyped-def]
    """The sum, and its norm in float32; what the backward pass needs is saved."""
    total = x + update
    if not total.is_contiguous():
        total = total.contiguous()
    wide, w, b = (_cast(t, torch.float32) for t in (total, weight, shift))
    y, mean, rstd = torch.native_layer_norm(wide, weight.shape, w, b, eps)
    ctx.save_for_backward(total, mean, rstd, weight)
    ctx.dtypes = x.dtype, update.dtype, None if bias is None else bias.dtype, None if later is None else later.dtype
    return total, y


def _parts(later: Tensor | None) -> tuple[Tensor, ...]:
    """What stands for the bias of a later layer: as many rows as its gradient has parts, whatever they hold."""
    return () if later is None else (torch.zeros(sharers(later.shape[0]), later.shape[0], device=later.device),)


def _gradients(ctx, d_total, dy, extra, raw, others):  # type: ignore[no-untyped-def]
    """Those of x, the update, the bias, the weight, the shift and the later bias; `others` end in its parts."""
    x, update, bias, later = ctx.dtypes
    parts = None if later is None else others[-1].contiguous()
    dx, d_update, d_weight, d_shift, d_bias, d_later = add_norm_backward(
        *ctx.saved_tensors, d_total, dy.contiguous(), extra, parts, raw, *ctx.dtypes
    )
    return (
        dx, dx if x == update else d_update, None if bias is None else d_bias, d_weight, d_shift,
        None if later is None else d_later,
    )  # fmt: skip


def _cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Not by a call that may return x itself: torch 2.11 loses gradients of a function of autograd with such calls."""
    return x if x.dtype == dtype else x.to(dtype)
