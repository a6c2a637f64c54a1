"""Mechanisms with a kernel: weights phi(q_i) . psi(k_j) over their sum in a row, O(N d f) with f features.

out_i = phi(q_i) S / (phi(q_i) . z),   S = sum_j psi(k_j) v_j^T,   z = sum_j psi(k_j)
"""

from torch import Tensor

from sightline.layers.conv import add_neighbours
from sightline.layers.core import Core, Grid, counted, products
from sightline.layers.weights import EPS, normalized
from sightline.ops import linear_attention
from sightline.ops.checks import accumulate_dtype, full_precision
from sightline.ops.feature_maps import hide


class KernelCore(Core):
    """Base of the mechanisms that are features of queries and keys, and where they have one a convolution of v."""

    eps = EPS  # the mean score of a query is kept so far from zero

    def features(self, q: Tensor, k: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """q (B, N, H, D), k (B, M, H, D) -> phi(q) (B, N, H, F) and psi(k) (B, M, H, F).

        Keys that do not count, false in `counts` (B, M), are zero in k and may have any finite features.
        """
        raise NotImplementedError

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
        counts = counted(key_mask, k)
        fq, fk = self._features(q, k, counts)
        out = linear_attention(fq, fk, v.to(fq.dtype), phi="identity", eps=self.eps, key_mask=key_mask)
        return add_neighbours(
            out.to(v.dtype), self.neighbours, v, grid=grid, prefix=prefix, key_mask=key_mask, local=local
        )  # fmt: skip

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
        fq, fk = self._features(q, k, counts)
        return normalized(products(fq[:, queries], hide(fk, ~counts[:, :, None, None])), counts, self.eps)

    def _features(self, q: Tensor, k: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """In float32 or wider, without what hidden keys hold."""
        wide = accumulate_dtype(q.dtype)
        with full_precision(q.device):
            return self.features(q.to(wide), hide(k.to(wide), ~counts[:, :, None, None]), counts)
