"""Rank-augmented linear attention: keys weighted by what the mean query asks for, and a gate of the output, O(N d^2).

Breaking the Low-Rank Dilemma of Linear Attention (CVPR 2025). With phi = elu + 1 and s = 1 / sqrt(d),
    a = softmax over j of s mean phi(q) . phi(k_j),   out_i = phi(q_i) S / (phi(q_i) . z),
    S = sum_j a_j phi(k_j) v_j^T,   z = sum_j a_j phi(k_j);   times W x_i + b with a gate
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sightline.layers.conv import ChannelConv
from sightline.layers.core import Place
from sightline.layers.mechanisms.baselines.kernel import KernelCore
from sightline.ops.checks import accumulate_dtype, full_precision
from sightline.ops.feature_maps import apply_feature_map, hide, key_features


class RalaCore(KernelCore):
    """RALA.

    Args:
        gate: multiply the output by a linear map of the tokens of the block, which is one at first.
        kernel: side of a depthwise convolution of v that is added, as in the models of the paper; 0 for none.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        stride: int = 16,
        length: int | None = None,
        *,
        gate: bool = False,
        kernel: int = 0,
    ) -> None:
        super().__init__(dim, num_heads, stride, length)
        self.neighbours = ChannelConv(dim, kernel, length is not None) if kernel else None
        # Parameters of their own, since models initialize their linear layers.
        self.gate_weight = nn.Parameter(torch.zeros(dim, dim)) if gate else None
        self.gate_bias = nn.Parameter(torch.ones(dim)) if gate else None

    def forward(self, q: Tensor, k: Tensor, v: Tensor, place: Place) -> Tensor:
        out, gate = super().forward(q, k, v, place), self.gate(place)
        return out if gate is None else out * gate.to(out.dtype)

    def gate(self, place: Place) -> Tensor | None:
        if self.gate_weight is None:
            return None
        context = place.context.to(self.gate_weight.dtype)
        return F.linear(context, self.gate_weight, self.gate_bias).unflatten(-1, (self.num_heads, -1))

    def _features(self, q: Tensor, k: Tensor, place: Place) -> tuple[Tensor, Tensor]:
        wide, hidden = accumulate_dtype(q.dtype), place.hidden(k)
        number = place.counts(k).sum(1).clamp(min=1)[:, None, None, None]
        with full_precision(q.device):
            fq, fk = apply_feature_map(q.to(wide), "elu1"), key_features(k.to(wide), "elu1", None, hidden)
            # If queries and keys are of the same tokens, a masked one has no part in the mean query either.
            same = place.key_mask is not None and place.local is None and q.shape[1] == k.shape[1]
            asking = hide(fq, hidden) if same else fq
            mean = asking.sum(1, keepdim=True) / (number if same else max(q.shape[1], 1))
            scores = (mean * fk).sum(-1, keepdim=True) * self.head_dim**-0.5  # B M H 1
            shares = scores.masked_fill(hidden, torch.finfo(wide).min).softmax(1)
            return fq, fk * (shares * number)
