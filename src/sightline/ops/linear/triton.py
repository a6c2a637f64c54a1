"""Linear attention by kernels; the same arguments as the reference, and packed sequences in one launch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from sightline.ops.common.arguments import contiguous_heads, dot_precision
from sightline.ops.common.operator import needs_gradient
from sightline.ops.feature_maps import Affine, kernel_features
from sightline.ops.linear.operator import attend


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    phi: str,
    eps: float,
    key_mask: Tensor | None,
    affine: Affine | None,
    cu_seqlens: Tensor | None = None,
    sizes: Sequence[int] = (0,),
) -> Tensor:
    """(B, N, H, D), (B, M, H, D), (B, M, H, D) -> (B, N, H, D)."""
    q, k, phi = kernel_features(q, k, phi, affine, key_mask)
    cu = None if cu_seqlens is None else cu_seqlens.to(q.device, torch.int32)
    mask = None if key_mask is None else key_mask.contiguous()
    return attend(
        contiguous_heads(q), contiguous_heads(k), contiguous_heads(v), *[None] * 11, mask, cu, None, 0, 0, q.shape[2],
        max(sizes), 0, 0, 0, 1.0, eps, phi, True, dot_precision(q.dtype), needs_gradient(q, k, v),
    )[0]  # fmt: skip
