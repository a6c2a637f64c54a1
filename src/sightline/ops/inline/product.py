"""Batched products of tall matrices (N x d) with each other and with small ones (d x d), fast on a CPU both ways.

Autograd's own backward multiplies with transposed views, for which some builds of torch have no fast way: 228 ms
instead of 10 for 384 products of 32 x 32 by 32 x 197. Here only small matrices are transposed, by copying them.
"""

from typing import Any

import torch
from torch import Tensor

from sightline.ops.checks import full_precision


class _Times(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:
        return a @ b

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        a, b = ctx.saved_tensors
        first, second = ctx.needs_input_grad
        with full_precision(a.device):
            return times(grad, b.mT.contiguous()) if first else None, moment(a, grad) if second else None


class _Moment(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:
        return a.mT @ b

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        a, b = ctx.saved_tensors
        first, second = ctx.needs_input_grad
        with full_precision(a.device):
            return times(b, grad.mT.contiguous()) if first else None, times(a, grad) if second else None


def times(a: Tensor, b: Tensor) -> Tensor:
    """A tall matrix by a small one: a (..., N, D) @ b (..., D, E)."""
    product: Tensor = _Times.apply(a, b) if _learns(a, b) else a @ b
    return product


def moment(a: Tensor, b: Tensor) -> Tensor:
    """The sum over rows of two tall matrices' products: a^T (..., D, N) @ b (..., N, E)."""
    product: Tensor = _Moment.apply(a, b) if _learns(a, b) else a.mT @ b
    return product


def _learns(a: Tensor, b: Tensor) -> bool:
    """Whether a backward pass on a CPU may follow."""
    return a.device.type == "cpu" and torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)
