"""Depthwise convolutions along a sequence: windows of `size` taps instead of squares."""

from torch import Tensor, nn

from sightline.layers.conv import depthwise_conv
from sightline.layers.core import Grid


class HeadTaps(nn.Module):
    """Convolution of the values whose weights a head's channels share."""

    def __init__(self, num_heads: int, size: int) -> None:
        super().__init__()
        self.conv = row_conv(num_heads, size, bias=False)

    def forward(self, v: Tensor, grid: Grid) -> Tensor:
        """(B, N, H, D) -> the same."""
        return depthwise_conv(v, self.conv.weight.repeat_interleave(v.shape[-1], 0), None, grid)


class SharedTaps(nn.Module):
    """Convolution of the values whose weights the heads share."""

    def __init__(self, head_dim: int, size: int) -> None:
        super().__init__()
        self.conv = row_conv(head_dim, size, bias=True)

    def forward(self, v: Tensor, grid: Grid) -> Tensor:
        """(B, N, H, D) -> the same."""
        heads = v.shape[2]
        assert self.conv.bias is not None
        return depthwise_conv(v, self.conv.weight.repeat(heads, 1, 1, 1), self.conv.bias.repeat(heads), grid)


def row_conv(channels: int, size: int, *, bias: bool) -> nn.Conv2d:
    """A depthwise convolution of maps with one row: weights (channels, 1, 1, size)."""
    return nn.Conv2d(channels, channels, (1, size), padding=(0, size // 2), groups=channels, bias=bias)
