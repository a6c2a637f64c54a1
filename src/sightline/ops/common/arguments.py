"""Arguments of kernels: tokens with their strides, sizes, and how products are taken."""

import torch
from torch import Tensor

from sightline.ops.common.launching import INTERPRETED


def sym_max(a: int, b: int) -> int:
    """torch.sym_max, typed for sizes, which are symbols while a graph is traced."""
    return torch.sym_max(a, b)  # type: ignore[return-value]


def sym_min(a: int, b: int) -> int:
    """torch.sym_min, likewise."""
    return torch.sym_min(a, b)  # type: ignore[return-value]


def contiguous_heads(x: Tensor) -> Tensor:
    """Tokens (B, N, H, D) whose channels and heads are contiguous, as kernels read them; a copy if need be."""
    return x if x.stride(3) == 1 and x.stride(2) == x.shape[3] else x.contiguous()


def strides(x: Tensor) -> tuple[Tensor, int, int]:
    """Tokens (B, N, ...) as kernels take them: the tensor, and the strides of images and tokens."""
    return x, x.stride(0), x.stride(1)


def head_shape(x: Tensor) -> tuple[int, int]:
    """Heads and head dim of tokens (B, N, H, D) as plain integers, since kernels are compiled for them."""
    return int(x.shape[2]), int(x.shape[3])


@torch.compiler.assume_constant_result
def dot_precision(dtype: torch.dtype) -> str:
    """The precision of matrix products in kernels for a dtype: float32 is TF32 if torch's own products may be.

    Triton's interpreter cannot multiply bfloat16.
    """
    if dtype == torch.bfloat16:
        return "tf32" if INTERPRETED else "bf16"
    return "fp32" if dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision != "tf32" else "tf32"
