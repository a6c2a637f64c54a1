"""Learned positions of a grid of tokens, resampled to any other grid."""

import torch
import torch.nn.functional as F
from timm.layers import register_notrace_module, trunc_normal_
from torch import Tensor, nn

from sightline.layers.core import Grid
from sightline.ops.checks import full_precision, is_symbolic


def resample_grid(table: Tensor, grid: Grid, mode: str) -> Tensor:
    """(1, h, w, C) -> (1, *grid, C). `bicubic` is antialiased; `bilinear` is not, as in the published models."""
    if not is_symbolic(*grid) and tuple(table.shape[1:3]) == tuple(grid):
        return table
    if torch.compiler.is_compiling():  # torch's own cannot be traced for any size: its gradient, and ONNX
        with full_precision(table.device):
            return _by_products(table.float(), grid, mode).to(table.dtype)
    maps = table.permute(0, 3, 1, 2).float()
    maps = F.interpolate(maps, size=grid, mode=mode, align_corners=False, antialias=mode == "bicubic")
    return maps.permute(0, 2, 3, 1).to(table.dtype)


def _by_products(table: Tensor, grid: Grid, mode: str) -> Tensor:
    """`resample_grid` by a matrix for the rows and one for the columns."""
    _, height, width, channels = table.shape
    rows = interpolation_matrix(height, grid[0], mode, table.device)
    columns = interpolation_matrix(width, grid[1], mode, table.device)
    table = rows @ table.reshape(height, width * channels)
    return (columns @ table.reshape(grid[0], width, channels)).unsqueeze(0)


def interpolation_matrix(source: int, target: int, mode: str, device: torch.device | None = None) -> Tensor:
    """(target, source): weights that resample `source` numbers as `F.interpolate` does in `resample_grid`."""
    index, position = (torch.arange(size, device=device, dtype=torch.float32) + 0.5 for size in (source, target))
    scale = torch.ones((), device=device) * source / target  # rounded as torch does
    position = (position * scale)[:, None]  # of the target's pixels among those of the source
    if mode == "bilinear":
        return (1 - (position.clamp(0.5, source - 0.5) - index).abs()).clamp(min=0)
    stretch = scale.clamp(min=1)  # antialiasing: the filter is one of target pixels
    x = (position - index).abs() / stretch
    near, far = (1.5 * x - 2.5) * x * x + 1, ((2.5 - 0.5 * x) * x - 4) * x + 2  # Keys' cubic with a = -1/2
    weights = torch.where(x < 1, near, torch.where(x < 2, far, 0.0))
    return weights / weights.sum(1, keepdim=True)


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
