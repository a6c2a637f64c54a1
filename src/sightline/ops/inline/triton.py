"""InLine attention by the kernels of `ops/linear`; arguments as in the reference, and packed images in one launch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from sightline.ops.checks import Grid
from sightline.ops.common.arguments import contiguous_heads, dot_precision
from sightline.ops.common.operator import needs_gradient
from sightline.ops.feature_maps import Affine, kernel_features
from sightline.ops.linear.operator import attend


def inline_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    phi: str,
    scale: float,
    residual: Tensor | None,
    grid: Grid | None,
    prefix: int,
    key_mask: Tensor | None,
    affine: Affine | None,
    cu_seqlens: Tensor | None = None,
    sizes: Sequence[int] = (0,),
    grids: Sequence[Grid] | None = None,
) -> Tensor:
    """(B, N, H, D), (B, M, H, D), (B, M, H, D) -> (B, N, H, D); packed images are (1, total, H, D)."""
    q, k, phi = kernel_features(q, k, phi, affine, key_mask)
    cu = None if cu_seqlens is None else cu_seqlens.to(q.device, torch.int32)
    table = None
    height, width = grid or (0, 0)
    if residual is None:
        height = width = 0
    elif grids is not None:
        height, width = max(g[0] for g in grids), max(g[1] for g in grids)
        table = torch.tensor(grids, dtype=torch.int32, device=q.device)
    weights = None if residual is None else residual.flatten(2).transpose(1, 2).contiguous()  # images 9 C
    return attend(
        contiguous_heads(q), contiguous_heads(k), contiguous_heads(v), weights, *[None] * 10,
        None if key_mask is None else key_mask.contiguous(), cu, table, 0, 0, q.shape[2], max(sizes), height, width,
        prefix, scale, 0.0, phi, False, dot_precision(q.dtype), needs_gradient(q, k, v, residual),
    )[0]  # fmt: skip
