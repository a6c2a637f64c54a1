"""Feature maps as modules, and the weights that features make."""

import torch
from torch import Tensor, nn

from sightline.ops.feature_maps import AFFINE_MAP, Affine, apply_feature_map, check_feature_map, key_features

EPS = 1e-6  # least absolute mean score of a query, as in `sightline.ops.linear_attention`


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
        check_feature_map(type(self).__name__, phi, self.affine(), num_heads, head_dim)

    def affine(self) -> Affine | None:
        return None if self.weight is None or self.bias is None else (self.weight, self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """phi(x) of (B, N, H, D)."""
        return apply_feature_map(x, self.phi, self.affine())

    def keys(self, k: Tensor, hidden: Tensor) -> Tensor:
        """phi(k), zero where `hidden` (B, M, 1, 1)."""
        return key_features(k, self.phi, self.affine(), hidden)


def quotient(fq: Tensor, fk: Tensor, counts: Tensor, eps: float = EPS) -> tuple[Tensor, Tensor]:
    """Factors (B, H, N, F) and (B, H, M, F) of the weights fq_i . fk_j / sum_j fq_i . fk_j.

    Args:
        fq: (B, N, H, F).
        fk: (B, M, H, F), zero for keys that do not count.
        counts: (B, M).
    """
    fq, fk = fq.transpose(1, 2), fk.transpose(1, 2)
    number = counts.sum(1).clamp(min=1)[:, None, None, None]
    mean = fq @ fk.sum(2).unsqueeze(-1) / number  # B H N 1
    mean = torch.where(mean < 0, mean.clamp(max=-eps), mean.clamp(min=eps))
    return fq / mean, fk / number
