"""Magnitude-aware linear attention: a longer query is a sharper one, O(N d^2).

Rectifying Magnitude Neglect in Linear Attention (ICCV 2025). With phi = elu + 1, s = 1 / sqrt(d) and, for every query,
z = s phi(q) . mean phi(k),
    w_ij = ((1 + 1 / z_i) s phi(q_i) . phi(k_j) - z_i) / N;   rows sum to one, weights may be negative
With b_i = (1 + 1 / z_i) phi(q_i) this is (s b_i . (phi(k_j) - mean phi(k)) + 1) / N: InLine attention of the queries b,
whose operator and kernels it uses.
"""

import torch
from torch import Tensor

from sightline.layers.conv import ChannelConv
from sightline.layers.core import Core, Factors, Place
from sightline.layers.feature_map import EPS
from sightline.ops import inline_attention
from sightline.ops.checks import accumulate_dtype, full_precision
from sightline.ops.feature_maps import apply_feature_map, key_features


class MalaCore(Core):
    """MALA; z is at least 1e-6.

    Args:
        kernel: side of a depthwise convolution of v that is added, as in the models of the paper; 0 for none.
    """

    centred = True

    def __init__(
        self, dim: int, num_heads: int, stride: int = 16, length: int | None = None, *, kernel: int = 0
    ) -> None:
        super().__init__(dim, num_heads, stride, length)
        self.neighbours = ChannelConv(dim, kernel, length is not None) if kernel else None

    def forward(self, q: Tensor, k: Tensor, v: Tensor, place: Place) -> Tensor:
        fq, fk, _ = self._features(q, k, place)
        dtype = fq.dtype if v.dtype == torch.float16 else v.dtype  # 1 / z may be out of its range
        out = inline_attention(fq.to(dtype), fk.to(dtype), v.to(dtype), key_mask=place.key_mask)
        return self.add_local(out.to(v.dtype), v, place)

    def factors(self, q: Tensor, k: Tensor, place: Place) -> Factors:
        fq, fk, mean = (t.transpose(1, 2) for t in self._features(q, k, place))
        counts = place.counts(k)[:, None, :, None].to(fk.dtype)  # B 1 M 1
        left = fq * self.head_dim**-0.5
        shift = 1 - (left * mean).sum(-1, keepdim=True)  # -z, but for a z that is below its least value
        right = torch.cat([fk, counts.expand(*fk.shape[:3], 1)], -1)
        return torch.cat([left, shift], -1), right / counts.sum(2, keepdim=True).clamp(min=1)

    def _features(self, q: Tensor, k: Tensor, place: Place) -> tuple[Tensor, Tensor, Tensor]:
        """(1 + 1 / z) phi(q), phi(k), zero where hidden, and its mean (B, 1, H, D), in float32 or wider."""
        wide, number = accumulate_dtype(q.dtype), place.counts(k).sum(1).clamp(min=1)[:, None, None, None]
        with full_precision(q.device):
            fq, fk = apply_feature_map(q.to(wide), "elu1"), key_features(k.to(wide), "elu1", None, place.hidden(k))
            mean = fk.sum(1, keepdim=True) / number
            z = (fq * mean).sum(-1, keepdim=True) * self.head_dim**-0.5
            return fq * (1 + 1 / z.clamp(min=EPS)), fk, mean
