"""Linear attention as a core: O(N d^2), normalised by the row sum."""

from torch import Tensor

from sightline.layers.core import Core, Grid, counted
from sightline.layers.mechanisms.feature_map import FeatureMap
from sightline.layers.weights import normalized
from sightline.ops import linear_attention


class LinearCore(Core):
    """phi(q) (phi(k)^T v) / (phi(q) . sum phi(k))."""

    def __init__(self, dim: int, num_heads: int, stride: int = 16, *, phi: str = "relu") -> None:
        super().__init__(dim, num_heads, stride)
        self.feature_map = FeatureMap(phi, num_heads, self.head_dim)

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
        return linear_attention(q, k, v, phi=self.feature_map.phi, affine=self.feature_map.affine, key_mask=key_mask)

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
        counts = counted(key_mask, k)
        return normalized(self.feature_map.scores(q[:, queries], k, counts), counts)
