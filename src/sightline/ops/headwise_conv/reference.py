"""The head-wise convolution by torch's depthwise convolution, through a channels-last map."""

import torch.nn.functional as F
from torch import Tensor

from sightline.ops.checks import Grid


def headwise_conv(x: Tensor, weight: Tensor, grid: Grid, add: Tensor | None) -> Tensor:
    """x (B, h * w, H, D), weight (H, 1, k, k) -> (B, h * w, H, D)."""
    batch, tokens, heads, dim = x.shape
    maps = x.reshape(batch, *grid, heads * dim).permute(0, 3, 1, 2)
    filters = weight.to(x.dtype).repeat_interleave(dim, 0)
    out = F.conv2d(maps, filters, padding=weight.shape[-1] // 2, groups=heads * dim)
    out = out.permute(0, 2, 3, 1).reshape(batch, tokens, heads, dim)
    return out if add is None else out + add
