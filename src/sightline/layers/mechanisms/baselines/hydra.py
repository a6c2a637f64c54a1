"""Hydra attention: as many heads as channels, O(N d).

Hydra Attention: Efficient Attention with Many Heads (2022). With x_hat = x / |x| over all channels,
    out_i = q_hat_i * sum_j (k_hat_j * v_j),   products by channel: weights q_hat_ic k_hat_jc in channel c, no row sum
"""

import torch.nn.functional as F
from torch import Tensor

from sightline.layers.core import Core, Factors, Place
from sightline.ops.checks import accumulate_dtype, full_precision
from sightline.ops.feature_maps import hide


class HydraCore(Core):
    """Linear attention with one channel per head and cosine features; weights are signed and rows have no fixed sum.

    Its rows have C heads, one per channel.
    """

    def forward(self, q: Tensor, k: Tensor, v: Tensor, place: Place) -> Tensor:
        with full_precision(q.device):
            fq, fk = self._features(q, k, place)
            state = (fk * hide(v.to(fk.dtype), place.hidden(k)).flatten(2)).sum(1, keepdim=True)  # B 1 C
            return (fq * state).to(v.dtype).unflatten(-1, (self.num_heads, self.head_dim))

    def factors(self, q: Tensor, k: Tensor, place: Place) -> Factors:
        fq, fk = self._features(q, k, place)
        return fq.transpose(1, 2).unsqueeze(-1), fk.transpose(1, 2).unsqueeze(-1)  # B C N 1

    def _features(self, q: Tensor, k: Tensor, place: Place) -> tuple[Tensor, Tensor]:
        """(B, N, C) and (B, M, C) of length one; zero where hidden."""
        wide = accumulate_dtype(q.dtype)
        keys = hide(k.to(wide), place.hidden(k))
        return F.normalize(q.to(wide).flatten(2), dim=-1), F.normalize(keys.flatten(2), dim=-1)
