"""InLine attention of the packed projection (B, N, 3, H, D), as a layer has it.

The operator takes q, k and v, whose gradients autograd would have to stack into that of the packed tensor they are
views of. Here the kernels write it in place.
"""

from torch import Tensor

from sightline import backend as backends
from sightline.ops.checks import Grid
from sightline.ops.common.registration import needs_gradient
from sightline.ops.feature_maps import AFFINE_MAP

if backends.TRITON_INSTALLED:
    from sightline.ops.linear.operator import attend_packed


def prefers_packed(x: Tensor, head_dim: int, phi: str) -> bool:
    """Whether the kernels take what a layer projects from the tokens x."""
    return phi != AFFINE_MAP and backends.packed_projection(x, head_dim)


def inline_from_packed(qkv: Tensor, residual: Tensor | None, grid: Grid, prefix: int, phi: str) -> Tensor:
    """qkv (B, N, 3, H, D) -> (B, N, H, D), with the usual scale."""
    height, width = grid if residual is not None else (0, 0)
    scale = qkv.shape[-1] ** -0.5
    return attend_packed(qkv, residual, None, height, width, prefix, scale, phi, needs_gradient(qkv, residual))[0]
