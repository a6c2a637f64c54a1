"""Hydra attention: as many heads as channels, O(N d).

Hydra Attention: Efficient Attention with Many Heads (2022). With x_hat = x / |x| over all channels,
    out_i = q_hat_i * sum_j (k_hat_j * v_j),   products by channel: weights q_hat_ic k_hat_jc in channel c, no row sum
"""

import torch.nn.functional as F
from torch import Tensor

from sightline.layers.core import Core, Grid, counted
from sightline.ops.checks import accumulate_dtype, full_precision
from sightline.ops.feature_maps import hide


class HydraCore(Core):
    """Linear attention with one channel a head and cosine features; weights are signed and grow with no row sum.

    Its rows have C heads, one a channel.
    """

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
        hidden = ~counted(key_mask, k)[:, :, None, None]
        with full_precision(q.device):
            fq, fk = self._features(q, k, hidden)
            state = (fk * hide(v.to(fk.dtype), hidden).flatten(2)).sum(1, keepdim=True)  # B 1 C
            return (fq * state).to(v.dtype).unflatten(-1, (self.num_heads, self.head_dim))

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
        fq, fk = self._features(q, k, ~counted(key_mask, k)[:, :, None, None])
        return fq[:, queries].transpose(1, 2).unsqueeze(-1) * fk.transpose(1, 2).unsqueeze(-2)  # B C Q M

    def _features(self, q: Tensor, k: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """(B, N, C) and (B, M, C) of length one; zero where hidden."""
        wide = accumulate_dtype(q.dtype)
        return F.normalize(q.to(wide).flatten(2), dim=-1), F.normalize(hide(k.to(wide), hidden).flatten(2), dim=-1)
