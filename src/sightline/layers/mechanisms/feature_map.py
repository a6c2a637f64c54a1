"""Feature maps as modules: a name, and the matrix and bias where the map has them."""

import torch
from torch import Tensor, nn

from sightline.layers.core import products
from sightline.ops.feature_maps import AFFINE_MAP, Affine, apply_feature_map, check_feature_map, key_features


class FeatureMap(nn.Module):
    """Holds `phi` and, for relu_affine, its weight (H, D, D) and bias (H, D), which start as the identity."""

    def __init__(self, phi: str, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.phi = phi
        self.weight: nn.Parameter | None = None
        self.bias: nn.Parameter | None = None
        if phi == AFFINE_MAP:
            self.weight = nn.Parameter(torch.eye(head_dim).repeat(num_heads, 1, 1))
            self.bias = nn.Parameter(torch.zeros(num_heads, head_dim))
        check_feature_map(type(self).__name__, phi, self.affine, num_heads, head_dim)

    @property
    def affine(self) -> Affine | None:
        return None if self.weight is None or self.bias is None else (self.weight, self.bias)

    def scores(self, q: Tensor, k: Tensor, counts: Tensor) -> Tensor:
        """phi(q_i) . phi(k_j), zero where `counts` (B, M) is false: (B, H, Q, M)."""
        hidden = ~counts[:, :, None, None]
        return products(apply_feature_map(q, self.phi, self.affine), key_features(k, self.phi, self.affine, hidden))
