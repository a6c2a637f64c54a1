"""Depthwise convolutions of the values, with weights that all images share: local terms of mechanisms.

A sequence is a grid of one row; its convolutions have weights of one row too.
"""

import torch.nn.functional as F
from timm.layers import register_notrace_module
from torch import Tensor, nn

from sightline.ops.checks import Grid
from sightline.ops.headwise_conv import headwise_conv


class HeadwiseConv(nn.Module):
    """Depthwise convolution whose weights the channels of a head share."""

    def __init__(self, num_heads: int, size: int, sequence: bool = False) -> None:
        super().__init__()
        self.conv = depthwise(num_heads, size, bias=False, sequence=sequence)
        self.sequence = sequence

    def forward(self, v: Tensor, grid: Grid, add: Tensor | None = None) -> Tensor:
        """(B, h * w, H, D) -> the same, plus `add`."""
        if not self.sequence:
            return headwise_conv(v, self.conv.weight, grid, add=add)
        out = depthwise_conv(v, self.conv.weight.repeat_interleave(v.shape[-1], 0), None, grid)
        return out if add is None else out + add


class SharedConv(nn.Module):
    """Depthwise convolution whose weights the heads share."""

    def __init__(self, head_dim: int, size: int, sequence: bool = False) -> None:
        super().__init__()
        self.conv = depthwise(head_dim, size, bias=True, sequence=sequence)

    def forward(self, v: Tensor, grid: Grid) -> Tensor:
        """(B, h * w, H, D) -> the same."""
        heads = v.shape[2]
        assert self.conv.bias is not None
        return depthwise_conv(v, self.conv.weight.repeat(heads, 1, 1, 1), self.conv.bias.repeat(heads), grid)


@register_notrace_module
class ChannelConv(nn.Module):
    """Depthwise convolution with weights for every channel, zero at first: it adds nothing until it is trained."""

    def __init__(self, dim: int, size: int, sequence: bool = False) -> None:
        super().__init__()
        self.conv = depthwise(dim, size, bias=False, sequence=sequence)
        nn.init.zeros_(self.conv.weight)

    def forward(self, v: Tensor, grid: Grid) -> Tensor:
        """(B, h * w, H, D) -> the same."""
        return depthwise_conv(v, self.conv.weight.to(v.dtype), None, grid)


def depthwise(channels: int, size: int, *, bias: bool, sequence: bool) -> nn.Conv2d:
    """Weights (channels, 1, size, size), or (channels, 1, 1, size) for sequences."""
    shape = (1 if sequence else size, size)
    return nn.Conv2d(channels, channels, shape, padding=(shape[0] // 2, size // 2), groups=channels, bias=bias)


def depthwise_conv(v: Tensor, weight: Tensor, bias: Tensor | None, grid: Grid) -> Tensor:
    """(B, h * w, H, D) with weight (C, 1, k, k), or (C, 1, 1, k) for one row -> (B, h * w, H, D), zero padded.

    The map is channels last.
    """
    batch, tokens, heads, dim = v.shape
    maps = v.reshape(batch, *grid, heads * dim).permute(0, 3, 1, 2)
    out = F.conv2d(maps, weight, bias, padding=(weight.shape[-2] // 2, weight.shape[-1] // 2), groups=heads * dim)
    return out.permute(0, 2, 3, 1).reshape(batch, tokens, heads, dim)
