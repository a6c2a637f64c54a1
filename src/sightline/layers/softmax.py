"""Softmax attention as a core: O(N^2)."""

from torch import Tensor

from sightline.layers.core import Core, Grid
from sightline.ops import softmax_attention


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
        bias: Tensor | None = None,
    ) -> Tensor:
        return softmax_attention(q, k, v, bias=bias, key_mask=key_mask)
