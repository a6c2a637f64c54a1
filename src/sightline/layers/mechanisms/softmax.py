"""Softmax attention as a core: O(N^2)."""

from torch import Tensor

from sightline.layers.core import Core, Place, softmax_rows
from sightline.ops import softmax_attention


class SoftmaxCore(Core):
    """softmax(q k^T / sqrt(d)) v, with an optional bias on the scores."""

    windowed = True
    injective = True

    def forward(self, q: Tensor, k: Tensor, v: Tensor, place: Place) -> Tensor:
        return softmax_attention(q, k, v, bias=place.bias, key_mask=place.key_mask)

    def rows(self, q: Tensor, k: Tensor, queries: Tensor, place: Place) -> Tensor:
        return softmax_rows(q[:, queries], k, place, None if place.bias is None else place.bias[..., queries, :])
