"""Efficient attention: softmax over the channels of q and over the tokens of k, O(N d^2).

Efficient Attention: Attention with Linear Complexities (WACV 2021).
    out = softmax_channels(q) (softmax_tokens(k)^T v);   the rows of the weights sum to one
"""

import torch
from torch import Tensor

from sightline.layers.core import Core, Factors, Place
from sightline.ops.checks import accumulate_dtype, full_precision
from sightline.ops.feature_maps import hide


class EfficientCore(Core):
    """softmax(q) (softmax(k)^T v), the first over channels, the second over tokens."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, place: Place) -> Tensor:
        with full_precision(q.device):
            fq, fk = self.factors(q, k, place)
            values = v.to(fq.dtype)
            if place.key_mask is not None:
                values = hide(values, place.hidden(k))
            return (fq @ (fk.transpose(-1, -2) @ values.transpose(1, 2))).transpose(1, 2).to(v.dtype)

    def factors(self, q: Tensor, k: Tensor, place: Place) -> Factors:
        wide, hidden = accumulate_dtype(q.dtype), place.hidden(k)
        keys = k.to(wide).masked_fill(hidden, torch.finfo(wide).min).softmax(1)
        return q.to(wide).softmax(-1).transpose(1, 2), hide(keys, hidden).transpose(1, 2)
