"""InLine attention by the kernels of `ops/linear`; arguments as in the reference, and packed images in one launch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from sightline.ops.checks import Grid
from sightline.ops.common.registration import needs_gradient
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
) -> Tensor:
    """(B, N, H, D), (B, M, H, D), (B, M, H, D) -> (B, N, H, D)."""
    q, k, phi = kernel_features(q, k, phi, affine, key_mask)
    save = needs_gradient(q, k, v, residual)
    height, width = grid if grid is not None and residual is not None else (0, 0)
    return attend(
        q, k, v, residual, key_mask, None, None, 0, height, width, prefix, scale, 0.0, phi, False, save
    )[0]  # fmt: skip


def inline_packed_images(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    phi: str,
    scale: float,
    residual: Tensor | None,
    prefix: int,
    affine: Affine | None,
    cu_seqlens: Tensor,
    sizes: Sequence[int],
    grids: Sequence[Grid] | None,
) -> Tensor:
    """Images of different sizes, packed as (1, total, H, D), in one launch."""
    q, k, phi = kernel_features(q, k, phi, affine, None)
    cu = cu_seqlens.to(q.device, torch.int32)
    height = width = 0
    table = None
    if residual is not None and grids is not None:
        height, width = max(g[0] for g in grids), max(g[1] for g in grids)
        table = torch.tensor(grids, dtype=torch.int32, device=q.device)
    save = needs_gradient(q, k, v, residual)
    return attend(
        q, k, v, residual, None, cu, table, max(sizes), height, width, prefix, scale, 0.0, phi, False, save
    )[0]  # fmt: skip
