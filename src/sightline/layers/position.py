"""Learned positions of a grid of tokens, resampled to any other grid."""

import torch
import torch.nn.functional as F
from timm.layers import register_notrace_module, trunc_normal_
from torch import Tensor, nn

from sightline.layers.core import Grid


def resample_grid(table: Tensor, grid: Grid, mode: str) -> Tensor:
    """(1, h, w, C) -> (1, *grid, C). `bicubic` is antialiased; `bilinear` is not, as in the published models."""
    if tuple(table.shape[1:3]) == tuple(grid):
        return table
    maps = table.permute(0, 3, 1, 2).float()
    maps = F.interpolate(maps, size=grid, mode=mode, align_corners=False, antialias=mode == "bicubic")
    return maps.permute(0, 2, 3, 1).to(table.dtype)


@register_notrace_module
class PositionTable(nn.Module):
    """A table (1, h, w, C), and one row for each prefix token.

    The table keeps its two sides apart, so that 112 x 448 pixels are not taken for 224 x 224, which have
    as many tokens.
    """

    def __init__(self, grid: Grid, dim: int, prefix: int = 0, mode: str = "bilinear") -> None:
        super().__init__()
        self.mode = mode
        self.weight = nn.Parameter(trunc_normal_(torch.empty(1, *grid, dim), std=0.02))
        self.prefix = nn.Parameter(trunc_normal_(torch.empty(1, prefix, dim), std=0.02)) if prefix else None

    def forward(self, grid: Grid) -> Tensor:
        """The positions of `grid` after those of the prefix, (1, prefix + h * w, C)."""
        table = resample_grid(self.weight, grid, self.mode).flatten(1, 2)
        return table if self.prefix is None else torch.cat([self.prefix, table], 1)

    def set_grid(self, grid: Grid) -> None:
        """Resample the parameter itself."""
        with torch.no_grad():
            table = resample_grid(self.weight, grid, self.mode)
        self.weight = nn.Parameter(table.clone(), requires_grad=self.weight.requires_grad)
