"""Softmax attention as a core: O(N^2)."""

import torch
from torch import Tensor

from sightline.layers.core import Core, Place, products
from sightline.ops import softmax_attention
from sightline.ops.feature_maps import hide


class SoftmaxCore(Core):
    """softmax(q k^T / sqrt(d)) v, with an optional bias on the scores."""

    windowed = True
    injective = True

    def forward(self, q: Tensor, k: Tensor, v: Tensor, place: Place) -> Tensor:
        return softmax_attention(q, k, v, bias=place.bias, key_mask=place.key_mask)

    def rows(self, q: Tensor, k: Tensor, queries: Tensor, place: Place) -> Tensor:
        scores = products(q[:, queries], hide(k, place.hidden(k))) * self.head_dim**-0.5
        if place.bias is not None:
            scores = scores + place.bias[..., queries, :].to(scores.dtype)
        return scores.masked_fill(~place.counts(k)[:, None, None, :], -torch.inf).softmax(-1).nan_to_num()
