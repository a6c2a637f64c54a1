"""Enhanced linear attention of EfficientViT: relu linear attention over tokens at several scales, O(N d^2).

EfficientViT: Multi-Scale Linear Attention for High-Resolution Dense Prediction (ICCV 2023). Beside the tokens
themselves, queries, keys and values aggregated from small neighbourhoods attend with heads of their own:
    out = A(q, k, v) + sum_s W_s A(agg_s(q), agg_s(k), agg_s(v)),   A linear attention with relu
agg is a depthwise convolution and a matrix for every head, of q, k and v each. In the paper the output projection takes
all scales side by side; here W_s brings each to the width of one before it, which amounts to the same.
"""

from typing import Any

import torch
from torch import Tensor, nn

from sightline.layers.conv import check_kernel, depthwise_conv
from sightline.layers.core import Core, Grid, counted, products
from sightline.layers.weights import normalized
from sightline.ops import linear_attention
from sightline.ops.checks import accumulate_dtype, full_precision
from sightline.ops.feature_maps import hide

Triple = tuple[Tensor, Tensor, Tensor]


class EnhancedCore(Core):
    """Multi-scale relu linear attention. Its rows have H heads for every scale, the tokens' own first.

    Args:
        scales: sets of aggregated tokens beside the plain ones.
        kernel: side of the first set's neighbourhood; every further one is two tokens wider.
    """

    def __init__(self, dim: int, num_heads: int, stride: int = 16, *, scales: int = 1, kernel: int = 5) -> None:
        super().__init__(dim, num_heads, stride)
        if scales < 0:
            raise ValueError(f"enhanced(scales={scales}): give the number of aggregated scales, at least 0")
        check_kernel("enhanced", kernel, 1)
        self.scales = nn.ModuleList(Scale(dim, num_heads, kernel + 2 * i) for i in range(scales))

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
        out = linear_attention(q, k, v, key_mask=key_mask)
        grids = (grid, key_grid or grid)
        for scale in self.scales:
            assert isinstance(scale, Scale)
            wide = scale.tokens(q, k, v, grids, prefix, key_mask, local is None)
            out = out + scale.mix(linear_attention(*wide, key_mask=key_mask).to(v.dtype))
        return out

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
        counts, grids = counted(key_mask, k), (grid, key_grid or grid)
        hidden = ~counts[:, :, None, None]
        found = [(q, k)]
        for scale in self.scales:
            assert isinstance(scale, Scale)
            found.append(scale.tokens(q, k, k, grids, prefix, key_mask, local is None)[:2])
        scores = [products(a[:, queries].relu(), hide(b, hidden).relu()) for a, b in found]
        return torch.cat([normalized(each, counts) for each in scores], 1)

    def by_rows(self, q: Tensor, k: Tensor, v: Tensor, queries: Tensor, **place: Any) -> Tensor:
        grids = (place["grid"], place.get("key_grid") or place["grid"])
        prefix, mask, same = place.get("prefix", 0), place.get("key_mask"), place.get("local") is None
        first, *others = self.rows(q, k, queries, **place).chunk(1 + len(self.scales), 1)
        out = torch.einsum("bhqm,bmhd->bqhd", first, hide(v, ~counted(mask, k)[:, :, None, None]))
        for scale, rows in zip(self.scales, others, strict=True):
            assert isinstance(scale, Scale)
            values = scale.tokens(q, k, v, grids, prefix, mask, same)[2]
            out = out + scale.mix(torch.einsum("bhqm,bmhd->bqhd", rows, values))
        return out


class Scale(nn.Module):
    """The tokens of one scale, and the matrix that brings their attention back."""

    def __init__(self, dim: int, num_heads: int, kernel: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Aggregate(dim, num_heads, kernel) for _ in "qkv")
        self.fuse = nn.Linear(dim, dim, bias=False)

    def tokens(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        grids: tuple[Grid, Grid],
        prefix: int,
        key_mask: Tensor | None,
        same: bool,
    ) -> Triple:
        """q, k and v aggregated on the grids of queries and keys; masked tokens are nobody's neighbours.

        `same`: queries and keys are of the same tokens, so that the mask is of the queries too.
        """
        if key_mask is not None:
            hidden = ~key_mask[:, :, None, None]
            k, v = hide(k, hidden), hide(v, hidden)
            q = hide(q, hidden) if same and q.shape[1] == k.shape[1] else q
        of_q, of_k, of_v = self.parts
        return of_q(q, grids[0], prefix), of_k(k, grids[1], prefix), of_v(v, grids[1], prefix)

    def mix(self, x: Tensor) -> Tensor:
        return self.fuse(x.flatten(2)).unflatten(-1, x.shape[2:])


class Aggregate(nn.Module):
    """A depthwise convolution of the tokens' map, then a matrix for every head.

    A prefix token has itself alone for a neighbourhood: the middle of the convolution's weights.
    """

    def __init__(self, dim: int, num_heads: int, kernel: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(dim, dim, kernel, padding=kernel // 2, groups=dim, bias=False)
        self.pointwise = nn.Conv2d(dim, dim, 1, groups=num_heads, bias=False)

    def forward(self, x: Tensor, grid: Grid, prefix: int) -> Tensor:
        """(B, p + h * w, H, D) -> the same, in float32 or wider: near zero a rounded sign would change relu's slope."""
        heads, dim = x.shape[2:]
        wide = accumulate_dtype(x.dtype)
        x, weight, matrix = (t.to(wide) for t in (x, self.depthwise.weight, self.pointwise.weight))
        with full_precision(x.device):
            near = depthwise_conv(x[:, prefix:], weight, None, grid)
            if prefix:
                middle = weight[:, 0, weight.shape[-2] // 2, weight.shape[-1] // 2]
                near = torch.cat([x[:, :prefix] * middle.view(heads, dim), near], 1)
            return torch.einsum("bnhd,hed->bnhe", near, matrix.view(heads, dim, dim))
