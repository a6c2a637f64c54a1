"""Enhanced linear attention of EfficientViT: relu linear attention over tokens at several scales, O(N d^2).

EfficientViT: Multi-Scale Linear Attention for High-Resolution Dense Prediction (ICCV 2023). Next to the tokens
themselves, queries, keys and values aggregated from small neighborhoods attend with their own heads:
    out = A(q, k, v) + sum_s W_s A(agg_s(q), agg_s(k), agg_s(v)),   A linear attention with relu
agg is a depthwise convolution and a matrix for every head, of q, k and v each. In the paper the output projection takes
all scales concatenated; here W_s brings each to the width of one before it, which amounts to the same.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from sightline.layers.conv import depthwise, depthwise_conv
from sightline.layers.core import Core, Factors, Grid, Place
from sightline.layers.feature_map import quotient
from sightline.ops import linear_attention
from sightline.ops.checks import accumulate_dtype, full_precision
from sightline.ops.feature_maps import hide

Triple = tuple[Tensor, Tensor, Tensor]


class EnhancedCore(Core):
    """Multi-scale relu linear attention. Its rows have H heads for every scale, those of the tokens themselves first.

    Args:
        scales: sets of aggregated tokens in addition to the plain ones.
        kernel: side of the first set's neighborhood; every further one is two tokens wider.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        stride: int = 16,
        length: int | None = None,
        *,
        scales: int = 1,
        kernel: int = 5,
    ) -> None:
        super().__init__(dim, num_heads, stride, length)
        made = [Scale(dim, num_heads, kernel + 2 * i, length is not None) for i in range(scales)]
        self.scales: Iterable[Scale] = nn.ModuleList(made)  # type: ignore[assignment]

    def forward(self, q: Tensor, k: Tensor, v: Tensor, place: Place) -> Tensor:
        out = linear_attention(q, k, v, key_mask=place.key_mask)
        for scale in self.scales:
            wide = linear_attention(*scale.tokens(q, k, v, place), key_mask=place.key_mask)
            out = out + scale.mix(wide.to(v.dtype))
        return out

    def factors(self, q: Tensor, k: Tensor, place: Place) -> Factors:
        found = [(q, k), *(scale.tokens(q, k, k, place)[:2] for scale in self.scales)]
        pairs = [quotient(a.relu(), hide(b, place.hidden(k)).relu(), place.counts(k)) for a, b in found]
        return torch.cat([left for left, _ in pairs], 1), torch.cat([right for _, right in pairs], 1)

    def by_rows(self, q: Tensor, k: Tensor, v: Tensor, queries: Tensor, place: Place) -> Tensor:
        """Each scale has its own values."""
        first, *others = self.rows(q, k, queries, place).split(self.num_heads, 1)
        out = torch.einsum("bhqm,bmhd->bqhd", first, hide(v, place.hidden(k)))
        for scale, rows in zip(self.scales, others, strict=True):
            out = out + scale.mix(torch.einsum("bhqm,bmhd->bqhd", rows, scale.tokens(q, k, v, place)[2]))
        return out


class Scale(nn.Module):
    """The tokens of one scale, and the matrix that brings their attention back."""

    def __init__(self, dim: int, num_heads: int, kernel: int, sequence: bool) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Aggregate(dim, num_heads, kernel, sequence) for _ in "qkv")
        self.fuse = nn.Linear(dim, dim, bias=False)

    def tokens(self, q: Tensor, k: Tensor, v: Tensor, place: Place) -> Triple:
        """q, k and v aggregated on the grids of queries and keys; masked tokens do not contribute."""
        if place.key_mask is not None:
            hidden = place.hidden(k)
            k, v = hide(k, hidden), hide(v, hidden)
            if place.local is None and q.shape[1] == k.shape[1]:  # queries and keys are of the same tokens
                q = hide(q, hidden)
        of_q, of_k, of_v = self.parts
        prefix = place.prefix
        return of_q(q, place.grid, prefix), of_k(k, place.keys, prefix), of_v(v, place.keys, prefix)

    def mix(self, x: Tensor) -> Tensor:
        return self.fuse(x.flatten(2)).unflatten(-1, x.shape[2:])


class Aggregate(nn.Module):
    """A depthwise convolution of the tokens' map, then a matrix for every head.

    A prefix token has only itself for a neighborhood: the middle of the convolution's weights.
    """

    def __init__(self, dim: int, num_heads: int, kernel: int, sequence: bool) -> None:
        super().__init__()
        self.depthwise = depthwise(dim, kernel, bias=False, sequence=sequence)
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
