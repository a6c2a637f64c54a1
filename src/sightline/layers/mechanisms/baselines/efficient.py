"""Efficient attention: softmax over the channels of q and over the tokens of k, O(N d^2).

Efficient Attention: Attention with Linear Complexities (WACV 2021).
    out = softmax_channels(q) (softmax_tokens(k)^T v);   the rows of the weights sum to one
"""

import torch
from torch import Tensor

from sightline.layers.core import Core, Grid, counted, products
from sightline.ops.checks import accumulate_dtype, full_precision
from sightline.ops.feature_maps import hide


class EfficientCore(Core):
    """softmax(q) (softmax(k)^T v), the first over channels, the second over tokens."""

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
        with full_precision(q.device):
            fq, fk = self._features(q, k, key_mask)
            values = v.to(fq.dtype)
            if key_mask is not None:
                values = hide(values, ~key_mask[:, :, None, None])
            state = fk.permute(0, 2, 3, 1) @ values.transpose(1, 2)  # B H D D
            return (fq.transpose(1, 2) @ state).transpose(1, 2).to(v.dtype)

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
        fq, fk = self._features(q, k, key_mask)
        return products(fq[:, queries], fk)

    def _features(self, q: Tensor, k: Tensor, key_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        wide = accumulate_dtype(q.dtype)
        hidden = ~counted(key_mask, k)[:, :, None, None]
        keys = k.to(wide).masked_fill(hidden, torch.finfo(wide).min).softmax(1)
        return q.to(wide).softmax(-1), hide(keys, hidden)
