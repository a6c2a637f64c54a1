"""Blocks with convolutions, on tokens as all blocks are: what a model learns from few images without attention."""

from timm.layers import Mlp, register_notrace_module
from torch import Tensor, nn

from sightline.layers.blocks import PreNormBlock
from sightline.layers.conv import ChannelConv
from sightline.layers.core import Grid
from sightline.layers.drop_path import drop_path as make_drop_path
from sightline.layers.patch import to_map, to_tokens


@register_notrace_module
class ConvBlock(nn.Module):
    """x + two 3x3 convolutions with batch norm, the block of a ResNet. The second norm starts at zero.

    Args:
        dim: channels.
        drop_path: stochastic depth.
    """

    def __init__(self, dim: int, drop_path: float = 0.0) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(dim, dim, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(dim)
        self.act = nn.SiLU()
        self.conv2 = nn.Conv2d(dim, dim, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(dim)
        self.drop_path = make_drop_path(drop_path)
        nn.init.zeros_(self.norm2.weight)

    def forward(self, x: Tensor, grid: Grid, prefix: int = 0) -> Tensor:
        """(B, h * w, C) -> the same; there are no prefix tokens."""
        branch = self.act(self.norm1(self.conv1(to_map(x, grid))))
        tokens, _ = to_tokens(self.norm2(self.conv2(branch)))
        return x + self.drop_path(tokens)


class ConvMlp(Mlp):
    """timm's MLP with a depthwise 3x3 convolution of its hidden channels, which is added to them; zero at first."""

    def __init__(self, dim: int, hidden: int, drop: float = 0.0) -> None:
        super().__init__(dim, hidden, drop=drop)
        self.near = ChannelConv(hidden, 3)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """(B, h * w, C) -> the same."""
        x = self.fc1(x)
        x = x + self.near(x.unsqueeze(2), grid).squeeze(2)
        return self.drop2(self.fc2(self.drop1(self.act(x))))


class ConvMlpBlock(PreNormBlock):
    """A block whose MLP sees the neighbors of a token."""

    mlp_takes_grid = True
