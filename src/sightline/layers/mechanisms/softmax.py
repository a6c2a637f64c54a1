"""Softmax attention as a core: O(N^2)."""

import torch
from torch import Tensor

from sightline.layers.core import Core, Grid, counted, products
from sightline.ops import softmax_attention
from sightline.ops.feature_maps import hide


class SoftmaxCore(Core):
    """softmax(q k^T / sqrt(d)) v, with an optional bias on the scores."""

    windowed = True

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
        bias: Tensor | None = None,
    ) -> Tensor:
        return softmax_attention(q, k, v, bias=bias, key_mask=key_mask)

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
        bias: Tensor | None = None,
    ) -> Tensor:
        counts = counted(key_mask, k)
        scores = products(q[:, queries], hide(k, ~counts[:, :, None, None])) * self.head_dim**-0.5
        if bias is not None:
            scores = scores + bias[..., queries, :].to(scores.dtype)
        return scores.masked_fill(~counts[:, None, None, :], -torch.inf).softmax(-1).nan_to_num()
