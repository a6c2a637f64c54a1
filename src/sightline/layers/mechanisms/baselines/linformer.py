"""Linformer: softmax attention over a fixed number of projected keys and values, O(N m d).

Linformer: Self-Attention with Linear Complexity (2020).
    out = softmax(q (E k)^T / sqrt(d)) (F v),   E and F learned, (m, N), shared by the heads

E and F belong to a number of tokens. Here they are maps: a table of m values for every place of a grid, resampled to
the grid of the keys. Their values are divided by the growth of the area, so that sums over the places keep their size.
"""

import torch
import torch.nn.functional as F
from timm.layers import trunc_normal_
from torch import Tensor, nn

from sightline.layers.core import Core, Grid, counted, products
from sightline.ops import softmax_attention
from sightline.ops.checks import accumulate_dtype, full_precision
from sightline.ops.feature_maps import hide


class LinformerCore(Core):
    """Linformer. Prefix tokens have no place in the tables: they stay keys of their own beside the projected ones.

    Args:
        rank: projected keys m.
        side: side of the tables' grid in tokens; 0 for that of an image of 224 px. Other grids are resampled.
        share: one table for keys and values.
    """

    def __init__(
        self, dim: int, num_heads: int, stride: int = 16, *, rank: int = 49, side: int = 0, share: bool = False
    ) -> None:
        super().__init__(dim, num_heads, stride)
        if rank < 1 or side < 0:
            raise ValueError(
                f"linformer(rank={rank},side={side}): give at least one projected key, and a side in tokens, or 0 for "
                f"that of 224 px"
            )
        side = side or max(1, 224 // stride)
        self.key_table = nn.Parameter(trunc_normal_(torch.empty(rank, side, side), std=1 / side))
        self.value_table = None if share else nn.Parameter(trunc_normal_(torch.empty(rank, side, side), std=1 / side))

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        context: Tensor,
        grid: Grid,
        prefix: int = 0,
        key_mask: Tensor | None = None,
        local: Tensor | None = None,
        key_grid: Grid | None = None,
    ) -> Tensor:
        hidden = ~counted(key_mask, k)[:, :, None, None]
        project_k, project_v = self._projections(key_grid or grid, v)
        keys, values = (
            _shorten(hide(t, hidden), projection, prefix) for t, projection in ((k, project_k), (v, project_v))
        )
        return softmax_attention(q, keys, values, key_mask=self._mask(key_mask, prefix))

    def rows(
        self,
        q: Tensor,
        k: Tensor,
        queries: Tensor,
        *,
        context: Tensor,
        grid: Grid,
        prefix: int = 0,
        key_mask: Tensor | None = None,
        local: Tensor | None = None,
        key_grid: Grid | None = None,
    ) -> Tensor:
        hidden = ~counted(key_mask, k)[:, :, None, None]
        project_k, project_v = self._projections(key_grid or grid, q)
        scores = products(q[:, queries], _shorten(hide(k, hidden), project_k, prefix)) * self.head_dim**-0.5
        if (mask := self._mask(key_mask, prefix)) is not None:
            scores = scores.masked_fill(~mask[:, None, None, :], -torch.inf)
        short = scores.softmax(-1)  # B H Q p + m
        rows = torch.cat([short[..., :prefix], short[..., prefix:] @ project_v], -1)
        return rows.masked_fill(hidden.view(hidden.shape[0], 1, 1, -1), 0)

    def _projections(self, grid: Grid, like: Tensor) -> tuple[Tensor, Tensor]:
        """E and F, (m, tokens of the grid), in the dtype of `like`."""
        project_k = _resample(self.key_table, grid).to(like.dtype)
        return project_k, project_k if self.value_table is None else _resample(self.value_table, grid).to(like.dtype)

    def _mask(self, key_mask: Tensor | None, prefix: int) -> Tensor | None:
        """(B, p + m): which of the prefix tokens count; the projected keys always do."""
        return None if key_mask is None else F.pad(key_mask[:, :prefix], (0, self.key_table.shape[0]), value=True)


def _resample(table: Tensor, grid: Grid) -> Tensor:
    """(m, side, side) -> (m, h * w), divided by the growth of the area."""
    side = table.shape[-1]
    down, across = (_interpolation(side, length, table) for length in grid)
    return torch.einsum("rij,hi,wj->rhw", table, down, across).flatten(1)


def _interpolation(source: int, target: int, like: Tensor) -> Tensor:
    """(target, source): linear interpolation between the middles of places, over wider triangles where it shrinks.

    Every place takes shares that sum to source / target. Unlike torch's own resampling, products with it have gradients
    at any size under torch.compile and give the same bits in every run.
    """
    place = (torch.arange(target, device=like.device) + 0.5) * (source / target) - 0.5
    distance = (torch.arange(source, device=like.device) - place.clamp(0, source - 1)[:, None]).abs()
    shares = (1 - distance / max(1.0, source / target)).clamp(min=0)
    return (shares / shares.sum(1, keepdim=True) * (source / target)).to(like.dtype)


def _shorten(x: Tensor, projection: Tensor, prefix: int) -> Tensor:
    """(B, p + M, H, D) -> (B, p + m, H, D): the places projected, with sums in float32."""
    wide = accumulate_dtype(x.dtype)
    with full_precision(x.device):
        short = torch.einsum("rm,bmhd->brhd", projection.to(wide), x[:, prefix:].to(wide)).to(x.dtype)
    return torch.cat([x[:, :prefix], short], 1) if prefix else short
