"""Linformer: softmax attention over a fixed number of projected keys and values, O(N m d).

Linformer: Self-Attention with Linear Complexity (2020).
    out = softmax(q (E k)^T / sqrt(d)) (F v),   E and F learned, (m, N), shared by the heads

E and F belong to a number of tokens. Here they are maps: a table of m values per position of a grid, resampled to the
grid of the keys. Their values are divided by the growth of the area, so that sums over positions keep their size. A
sequence shorter than the table takes its first columns, so that padding changes nothing.
"""

import torch
import torch.nn.functional as F
from timm.layers import trunc_normal_
from torch import Tensor, nn

from sightline.layers.core import Core, Factors, Grid, Place, products
from sightline.ops import softmax_attention
from sightline.ops.checks import accumulate_dtype, full_precision
from sightline.ops.feature_maps import hide
from sightline.util.errors import InputError


class LinformerCore(Core):
    """Linformer. Prefix tokens have no position in the tables: they remain separate keys next to the projected ones.

    Args:
        rank: projected keys m.
        side: side of the tables' grid in tokens; 0 for that of an image of 224 px. Other grids are resampled.
        share: one table for keys and values.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        stride: int = 16,
        length: int | None = None,
        *,
        rank: int = 49,
        side: int = 0,
        share: bool = False,
    ) -> None:
        super().__init__(dim, num_heads, stride, length)
        if side and length is not None:
            raise InputError(f"linformer(side={side}): a sequence has no side; leave it out")
        side = side or max(1, 224 // stride)
        grid = (side, side) if length is None else (1, length)
        self.length = length
        self.key_table = _table(rank, grid)
        self.value_table = None if share else _table(rank, grid)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, place: Place) -> Tensor:
        hidden, prefix = place.hidden(k), place.prefix
        project_k, project_v = self._projections(place.keys, v)
        keys, values = _shorten(hide(k, hidden), project_k, prefix), _shorten(hide(v, hidden), project_v, prefix)
        return softmax_attention(q, keys, values, key_mask=self._mask(place))

    def factors(self, q: Tensor, k: Tensor, place: Place) -> Factors:
        hidden, prefix = place.hidden(k), place.prefix
        project_k, project_v = self._projections(place.keys, q)
        scores = products(q, _shorten(hide(k, hidden), project_k, prefix)) * self.head_dim**-0.5
        if (mask := self._mask(place)) is not None:
            scores = scores.masked_fill(~mask[:, None, None, :], -torch.inf)
        eye = torch.eye(prefix, dtype=q.dtype, device=q.device)
        right = torch.block_diag(eye, project_v.T) if prefix else project_v.T  # M, p + m
        return scores.softmax(-1), right.expand(q.shape[0], q.shape[2], -1, -1).masked_fill(hidden.transpose(1, 2), 0)

    def _projections(self, grid: Grid, like: Tensor) -> tuple[Tensor, Tensor]:
        """E and F, (m, tokens of the grid), in the dtype of `like`."""
        project_k = self._project(self.key_table, grid).to(like.dtype)
        return project_k, project_k if self.value_table is None else self._project(self.value_table, grid).to(
            like.dtype
        )

    def _project(self, table: Tensor, grid: Grid) -> Tensor:
        if self.length is None:
            return _resample(table, grid)
        tokens = grid[0] * grid[1]
        if tokens > self.length:
            raise InputError(f"linformer: {tokens} tokens for tables of {self.length}; build it with a larger length")
        return table[:, 0, :tokens]

    def _mask(self, place: Place) -> Tensor | None:
        """(B, p + m): which of the prefix tokens count; the projected keys always do."""
        if place.key_mask is None:
            return None
        return F.pad(place.key_mask[:, : place.prefix], (0, self.key_table.shape[0]), value=True)


def _table(rank: int, grid: Grid) -> nn.Parameter:
    return nn.Parameter(trunc_normal_(torch.empty(rank, *grid), std=(grid[0] * grid[1]) ** -0.5))


def _resample(table: Tensor, grid: Grid) -> Tensor:
    """(m, side, side) -> (m, h * w), divided by the growth of the area."""
    side = table.shape[-1]
    down, across = (_interpolation(side, length, table) for length in grid)
    return (down @ table @ across.mT).flatten(1)


def _interpolation(source: int, target: int, like: Tensor) -> Tensor:
    """(target, source): linear interpolation between centers of positions, over wider triangles where it shrinks.

    Every position takes shares that sum to source / target. Unlike torch's own resampling, products with it have
    gradients at any size under torch.compile and give the same bits in every run.
    """
    ratio = torch.ones((), device=like.device) * source / target  # a tensor: a graph for any size has no branches
    centre = (torch.arange(target, device=like.device) + 0.5) * ratio - 0.5
    distance = (torch.arange(source, device=like.device) - centre.clamp(0, source - 1)[:, None]).abs()
    shares = (1 - distance / ratio.clamp(min=1)).clamp(min=0)
    return (shares / shares.sum(1, keepdim=True) * ratio).to(like.dtype)


def _shorten(x: Tensor, projection: Tensor, prefix: int) -> Tensor:
    """(B, p + M, H, D) -> (B, p + m, H, D): the positions projected, with sums in float32."""
    wide = accumulate_dtype(x.dtype)
    with full_precision(x.device):
        short = torch.einsum("rm,bmhd->brhd", projection.to(wide), x[:, prefix:].to(wide)).to(x.dtype)
    return torch.cat([x[:, :prefix], short], 1) if prefix else short
