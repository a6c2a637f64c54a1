"""Depthwise convolution of tokens with weights that all images share."""

import torch.nn.functional as F
from torch import Tensor

from sightline.layers.core import Grid


def depthwise_conv(v: Tensor, weight: Tensor, bias: Tensor | None, grid: Grid) -> Tensor:
    """(B, h * w, H, D) with weight (C, 1, k, k) -> (B, h * w, H, D), zero padded, through a channels-last map."""
    batch, tokens, heads, dim = v.shape
    maps = v.reshape(batch, *grid, heads * dim).permute(0, 3, 1, 2)
    out = F.conv2d(maps, weight, bias, padding=weight.shape[-1] // 2, groups=heads * dim)
    return out.permute(0, 2, 3, 1).reshape(batch, tokens, heads, dim)
