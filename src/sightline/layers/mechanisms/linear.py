"""Linear attention with a feature map as a core: O(N d^2).

Transformers are RNNs (ICML 2020).
"""

from torch import Tensor

from sightline.layers.core import Core, Factors, Place
from sightline.layers.feature_map import FeatureMap, quotient
from sightline.ops import linear_attention


class LinearCore(Core):
    """phi(q) (phi(k)^T v) / (phi(q) . sum phi(k))."""

    feature_map: FeatureMap
    injective = False

    def __init__(
        self, dim: int, num_heads: int, stride: int = 16, length: int | None = None, *, phi: str = "relu"
    ) -> None:
        super().__init__(dim, num_heads, stride, length)
        self.feature_map = FeatureMap(phi, num_heads, self.head_dim)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, place: Place) -> Tensor:
        phi = self.feature_map
        return linear_attention(q, k, v, phi=phi.phi, affine=phi.affine, key_mask=place.key_mask)

    def factors(self, q: Tensor, k: Tensor, place: Place) -> Factors:
        phi = self.feature_map
        return quotient(phi(q), phi.keys(k, place.hidden(k)), place.counts(k))
