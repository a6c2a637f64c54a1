"""Batched products of tall matrices (N x d) with each other and with small ones (d x d), fast on a CPU both ways.

Autograd's own backward multiplies with transposed views, which is slow in some builds of torch: 228 ms
instead of 10 for 384 products of 32 x 32 by 32 x 197. Here only small matrices are transposed, by copying them.
"""

import torch
from torch import Tensor

from sightline import backend as backends
from sightline.ops.checks import accumulate_dtype, full_precision, is_exporting
from sightline.ops.common.operator import Context


class _Matmul(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:
        return a @ b

    @staticmethod
    def setup_context(ctx: Context, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        a, b = ctx.saved_tensors
        first, second = ctx.needs_input_grad
        with full_precision(a.device):
            return matmul(grad, b.mT.contiguous()) if first else None, moment(a, grad) if second else None


class _Moment(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:
        return a.mT @ b

    @staticmethod
    def setup_context(ctx: Context, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        a, b = ctx.saved_tensors
        first, second = ctx.needs_input_grad
        with full_precision(a.device):
            return matmul(b, grad.mT.contiguous()) if first else None, matmul(a, grad) if second else None


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """A tall matrix by a small one: a (..., N, D) @ b (..., D, E)."""
    product: Tensor = _Matmul.apply(a, b) if backends.tall_products(a, b) else a @ b
    return product


def moment(a: Tensor, b: Tensor) -> Tensor:
    """The sum over rows of two tall matrices' products: a^T (..., D, N) @ b (..., N, E)."""
    product: Tensor = _Moment.apply(a, b) if backends.tall_products(a, b) else a.mT @ b
    return product


def sum_tokens(x: Tensor) -> Tensor:
    """The sum over tokens, (B, N, ...) -> (B, 1, ...); exported for a CPU as a product, fast in onnxruntime."""
    if is_exporting() and x.device.type == "cpu":
        return (x.new_ones(1, x.shape[1]) @ x.flatten(2)).unflatten(2, x.shape[2:])
    return x.sum(1, keepdim=True)


def mean_token(x: Tensor) -> Tensor:
    """(B, N, C) -> (B, C), summed in float32 or wider."""
    wide = accumulate_dtype(x.dtype)
    if is_exporting():
        return (sum_tokens(x.to(wide)) / x.shape[1]).squeeze(1).to(x.dtype)
    return x.mean(1, dtype=wide).to(x.dtype)
