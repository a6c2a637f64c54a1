"""InLine attention of the packed projection (B, N, 3, H, D), as a layer has it.

The operator takes q, k and v, whose gradients autograd would have to stack into that of the packed tensor they are
views of. Here the kernels write it in place.
"""

import torch
from torch import Tensor

from sightline import backend as backends
from sightline.ops import fused
from sightline.ops.checks import Grid
from sightline.ops.feature_maps import AFFINE_MAP
from sightline.ops.fused.features import needs_gradient

NAME = "inline_attention"


def prefers_packed(x: Tensor, head_dim: int, phi: str) -> bool:
    """Whether the kernels will take what a layer projects from the tokens x."""
    low, high = fused.HEAD_DIMS
    takes = phi != AFFINE_MAP and low <= head_dim <= high and x.numel() > 0
    half = torch.is_autocast_enabled(x.device.type) if x.device.type != "meta" else False
    return takes and (half or x.dtype in fused.DTYPES) and backends.choose(NAME, x.device) == "triton"


def inline_from_packed(qkv: Tensor, residual: Tensor | None, grid: Grid, prefix: int, phi: str) -> Tensor:
    """qkv (B, N, 3, H, D) -> (B, N, H, D), with the usual scale."""
    height, width = grid if residual is not None else (0, 0)
    scale = qkv.shape[-1] ** -0.5
    return fused.attend_packed(qkv, residual, None, height, width, prefix, scale, phi, needs_gradient(qkv, residual))[0]
