"""Nystromformer: softmax attention through landmarks that are means of segments, O(N m d + m^3).

Nystromformer: A Nystrom-Based Algorithm for Approximating Self-Attention (AAAI 2021). With landmarks of the queries and
of the keys,
    out = softmax(q l_k^T) softmax(l_q l_k^T)^+ softmax(l_q k^T) v,   scores divided by sqrt(d)
and the pseudo-inverse by the iteration of Razavi et al., which only needs matrix products. With as many landmarks as
tokens it is softmax attention.
"""

import torch
from torch import Tensor

from sightline.layers.conv import HeadwiseConv
from sightline.layers.core import Core, Factors, Place
from sightline.layers.mechanisms.landmarks import segment_means
from sightline.ops.checks import accumulate_dtype, full_precision
from sightline.ops.feature_maps import hide


class NystromformerCore(Core):
    """Nystromformer.

    Args:
        landmarks: segments m that the tokens are cut into, in order and as even as possible; at most one per token.
        iterations: steps of the pseudo-inverse.
        kernel: side of a depthwise convolution of v that is added, the skip connection of the paper; 0 for none.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        stride: int = 16,
        length: int | None = None,
        *,
        landmarks: int = 49,
        iterations: int = 6,
        kernel: int = 0,
    ) -> None:
        super().__init__(dim, num_heads, stride, length)
        self.landmarks = landmarks
        self.iterations = iterations
        self.neighbours = HeadwiseConv(num_heads, kernel, length is not None) if kernel else None

    def forward(self, q: Tensor, k: Tensor, v: Tensor, place: Place) -> Tensor:
        with full_precision(q.device):
            left, inverse, right = self._three(q, k, place)
            values = hide(v.to(left.dtype), place.hidden(k)).transpose(1, 2)
            out = (left @ (inverse @ (right @ values))).transpose(1, 2).to(v.dtype)
        return self.add_local(out, v, place)

    def factors(self, q: Tensor, k: Tensor, place: Place) -> Factors:
        left, inverse, right = self._three(q, k, place)
        return left @ inverse, right.transpose(-1, -2)

    def _three(self, q: Tensor, k: Tensor, place: Place) -> tuple[Tensor, Tensor, Tensor]:
        """(B, H, N, m), (B, H, m, m) and (B, H, m, M)."""
        counts = place.counts(k)
        wide, number = accumulate_dtype(q.dtype), min(self.landmarks, q.shape[1], k.shape[1])
        # If queries and keys are of the same tokens, a masked one has no part in the queries' landmarks either.
        same = place.local is None and q.shape[1] == k.shape[1]
        asking = counts if same else q.new_ones(q.shape[:2], dtype=torch.bool)
        queries = q.to(wide).transpose(1, 2) * self.head_dim**-0.5  # B H N D
        keys = hide(k.to(wide), place.hidden(k)).transpose(1, 2)
        mean_q, some_q = segment_means(queries.masked_fill(~asking[:, None, :, None], 0), asking, number)
        mean_k, some_k = segment_means(keys, counts, number)
        columns = some_k[:, None, None, :]
        left = _softmax(queries @ mean_k.transpose(-1, -2), columns)
        middle = _softmax(mean_q @ mean_k.transpose(-1, -2), columns & some_q[:, None, :, None])
        right = _softmax(mean_q @ keys.transpose(-1, -2), counts[:, None, None, :] & some_q[:, None, :, None])
        return left, pseudo_inverse(middle, self.iterations), right


def pseudo_inverse(matrix: Tensor, iterations: int) -> Tensor:
    """The pseudo-inverse of (..., m, m): Z <- Z (13 I - A Z (15 I - A Z (7 I - A Z))) / 4 from A^T / (|A|_1 |A|_inf).

    The norms are those of each matrix, so that an image does not depend on its batch. Rows and columns of zeros stay.
    """
    size = matrix.detach().abs()
    norms = size.sum(-1).amax(-1) * size.sum(-2).amax(-1)  # ...
    inverse = matrix.transpose(-1, -2) / norms.clamp(min=torch.finfo(matrix.dtype).tiny)[..., None, None]
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    for _ in range(iterations):
        product = matrix @ inverse
        inverse = inverse @ (13 * eye - product @ (15 * eye - product @ (7 * eye - product))) / 4
    return inverse


def _softmax(scores: Tensor, keep: Tensor) -> Tensor:
    """Softmax over what is kept, zero elsewhere; a row with nothing kept is zero."""
    kept = scores.masked_fill(~keep, torch.finfo(scores.dtype).min).softmax(-1)
    return kept.masked_fill(~keep, 0)
