"""Mechanisms with a kernel: weights phi(q_i) . psi(k_j) over their sum in a row, O(N d f) with f features.

out_i = phi(q_i) S / (phi(q_i) . z),   S = sum_j psi(k_j) v_j^T,   z = sum_j psi(k_j)
"""

import torch
from torch import Tensor

from sightline.layers.core import Core, Factors, Place
from sightline.layers.feature_map import EPS, quotient
from sightline.ops import linear_attention
from sightline.ops.checks import accumulate_dtype, full_precision
from sightline.ops.feature_maps import hide


class KernelCore(Core):
    """Base of the mechanisms that are features of queries and keys, with or without a convolution of v."""

    eps = EPS  # least absolute mean score of a query

    def features(self, q: Tensor, k: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """q (B, N, H, D), k (B, M, H, D) -> phi(q) (B, N, H, F) and psi(k) (B, M, H, F).

        Keys that do not count, false in `counts` (B, M), are zero in k and may have any finite features.
        """
        raise NotImplementedError

    def forward(self, q: Tensor, k: Tensor, v: Tensor, place: Place) -> Tensor:
        fq, fk = self._features(q, k, place)
        out = linear_attention(fq, fk, v.to(fq.dtype), phi="identity", eps=self.eps, key_mask=place.key_mask)
        return self.add_local(out.to(v.dtype), v, place)

    def factors(self, q: Tensor, k: Tensor, place: Place) -> Factors:
        fq, fk = self._features(q, k, place)
        return quotient(fq, hide(fk, place.hidden(k)), place.counts(k), self.eps)

    def _features(self, q: Tensor, k: Tensor, place: Place) -> tuple[Tensor, Tensor]:
        """In float32 or wider, without what hidden keys hold."""
        wide = accumulate_dtype(q.dtype)
        with full_precision(q.device):
            return self.features(q.to(wide), hide(k.to(wide), place.hidden(k)), place.counts(k))


def from_exponents(log_q: Tensor, log_k: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Positive features (B, N, H, F) and (B, M, H, F) from their logarithms, up to factors that cancel in a row.

    Factors of a query or of all keys cancel in the quotient. The largest exponent of a feature goes from the keys to
    the queries: both stay below one, and the best feature of a query alone makes its row sum at least one.

    Args:
        counts: (B, M); keys that do not count have no part in it.
    """
    log_k = log_k.masked_fill(~counts[:, :, None, None], -torch.inf)
    top = log_k.detach().amax(1, keepdim=True)
    top = torch.where(top.isfinite(), top, 0.0)
    log_q = log_q + top
    return (log_q - log_q.detach().amax(-1, keepdim=True)).exp(), (log_k - top).exp()
