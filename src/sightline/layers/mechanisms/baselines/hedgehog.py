"""Hedgehog: learned features that imitate the spiky weights of softmax, O(N d^2).

The Hedgehog & the Porcupine: Expressive Linear Attentions with Softmax Mimicry (ICLR 2024).
    phi(x) = softmax over channels of [W x, -W x],   W a matrix for every head, the identity at first
    out = linear attention with phi, whose 2 d features are positive
"""

import torch
from torch import Tensor, nn

from sightline.layers.conv import ChannelConv
from sightline.layers.mechanisms.baselines.kernel import KernelCore, from_exponents


class HedgehogCore(KernelCore):
    """Hedgehog.

    Args:
        share: one map for queries and keys.
        kernel: side of a depthwise convolution of v that is added; 0 for none.
    """

    eps = 1e-30  # no row sum is below one, see `from_exponents`

    def __init__(
        self,
        dim: int,
        num_heads: int,
        stride: int = 16,
        length: int | None = None,
        *,
        share: bool = False,
        kernel: int = 0,
    ) -> None:
        super().__init__(dim, num_heads, stride, length)
        self.query_map = nn.Parameter(torch.eye(self.head_dim).repeat(num_heads, 1, 1))
        self.key_map = None if share else nn.Parameter(torch.eye(self.head_dim).repeat(num_heads, 1, 1))
        self.neighbours = ChannelConv(dim, kernel, length is not None) if kernel else None

    def features(self, q: Tensor, k: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        key_map = self.query_map if self.key_map is None else self.key_map
        # The sum that the softmax of a query divides by cancels in its row.
        return from_exponents(_both_signs(q, self.query_map), _both_signs(k, key_map).log_softmax(-1), counts)


def _both_signs(x: Tensor, weight: Tensor) -> Tensor:
    """[W x, -W x] of (B, N, H, D) with weight (H, D, D): (B, N, H, 2 D)."""
    x = torch.einsum("bnhd,hed->bnhe", x, weight.to(x.dtype))
    return torch.cat([x, -x], -1)
