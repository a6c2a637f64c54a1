"""The head-wise convolution as a torch operator; see `sightline.ops.common.registration`."""

from collections.abc import Sequence

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
from sightline.ops.headwise_conv import launch

LIBRARY.define("headwise_conv(Tensor x, Tensor weight, Tensor? add, SymInt height, SymInt width, bool flip) -> Tensor")
LIBRARY.define("headwise_conv_weight(Tensor x, Tensor grad, Tensor weight, SymInt height, SymInt width) -> Tensor")


@implements("headwise_conv")
def _convolve(x: Tensor, weight: Tensor, add: Tensor | None, height: int, width: int, flip: bool) -> Tensor:
    with on_device(x):
        return launch.convolve(x, weight, add, (height, width), flip)


@implements("headwise_conv_weight")
def _weight_gradient(x: Tensor, grad: Tensor, weight: Tensor, height: int, width: int) -> Tensor:
    with on_device(x):
        return launch.weight_gradient(x, grad, weight, (height, width))


@torch.library.register_fake("sightline::headwise_conv", lib=LIBRARY)
def _(x, weight, add, height, width, flip):  # type: ignore[no-untyped-def]
    return empty_like(x)[0]


@torch.library.register_fake("sightline::headwise_conv_weight", lib=LIBRARY)
def _(x, grad, weight, height, width):  # type: ignore[no-untyped-def]
    return empty_like(weight)[0]


class HeadwiseConv(torch.autograd.Function):
    """`headwise_conv` with its gradient."""

    @staticmethod
    def forward(
        ctx: Context, x: Tensor, weight: Tensor, add: Tensor | None, height: int, width: int, flip: bool
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.options = height, width, flip
        with below_autograd():
            return torch.ops.sightline.headwise_conv(x, weight, add, height, width, flip)

    @staticmethod
    def backward(ctx: Context, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), (height, width, flip), (grad,) = ctx.saved_tensors, ctx.options, grads
        needs_x, needs_weight, needs_add = ctx.needs_input_grad[:3]
        dx = dw = None
        if needs_x:
            dx = torch.ops.sightline.headwise_conv(grad, weight, None, height, width, not flip)
        if needs_weight:
            dw = torch.ops.sightline.headwise_conv_weight(x, grad, weight, height, width)
            dw = dw.flip(2, 3) if flip else dw
        return dx, dw, grad if needs_add else None, None, None, None


register_gradient("headwise_conv", HeadwiseConv)
headwise_conv = torch.ops.sightline.headwise_conv


def _flops(x_shape: Sequence[int], weight_shape: Sequence[int]) -> int:
    """Two operations per element and tap."""
    batch, tokens, heads, dim = x_shape
    return 2 * batch * tokens * heads * dim * weight_shape[2] * weight_shape[3]


@register_flop_formula(torch.ops.sightline.headwise_conv)
def _(x, weight, *args, **kwargs) -> int:  # type: ignore[no-untyped-def]
    return _flops(x, weight)


@register_flop_formula(torch.ops.sightline.headwise_conv_weight)
def _(x, grad, weight, *args, **kwargs) -> int:  # type: ignore[no-untyped-def]
    return _flops(x, weight)
