"""GELU, whose gradient and that of the bias before it are one pass in a compiled training step.

torch's compiler reads the gradient again to sum it for the bias, with two more launches.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from sightline import backend

if backend.TRITON_INSTALLED:
    from sightline.ops.gelu.operator import gelu_backward


def gelu_of_biased(x: Tensor, parts: Tensor, *, tanh: bool) -> Tensor:
    """GELU of x, which has a bias in it without its gradient: that is the sum of the gradient of `parts`.

    Args:
        x: (..., channels) in float32, float16 or bfloat16.
        parts: (programs, channels) in float32, of which nothing is read; see `operator.sharers`.
        tanh: use the approximation by tanh.
    """
    return _Gelu.apply(x, parts, tanh)


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, parts, tanh):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x)
        ctx.tanh = tanh
        return F.gelu(x, approximate="tanh" if tanh else "none")

    @staticmethod
    def backward(ctx, dy):  # type: ignore[no-untyped-def]
        (x,) = ctx.saved_tensors
        return *gelu_backward(x.contiguous(), dy.contiguous(), ctx.tanh), None
