"""Linear-angular attention: the linear terms of the angular kernel, and a convolution for the others, O(N d^2).

Castling-ViT: Compressing Self-Attention via Switching Towards Linear-Angular Attention (CVPR 2023). The angle t between
q and k gives the similarity 1 - t / pi = 1/2 + cos(t) / pi + terms of third and higher order in cos(t). Kept are
    w_ij = (1/2 + cos(t_ij) / pi) / sum over j,
and a depthwise convolution of the values takes the place of the rest. The masked softmax that the paper trains next to
it, and drops for inference, is not part of it here.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from sightline.layers.conv import HeadwiseConv
from sightline.layers.mechanisms.baselines.kernel import KernelCore


class LinearAngularCore(KernelCore):
    """Linear-angular attention; `kernel` is the side of the convolution of the values, 0 for none."""

    def __init__(
        self, dim: int, num_heads: int, stride: int = 16, length: int | None = None, *, kernel: int = 3
    ) -> None:
        super().__init__(dim, num_heads, stride, length)
        self.neighbours = HeadwiseConv(num_heads, kernel, length is not None) if kernel else None

    def features(self, q: Tensor, k: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        return self._unit(q), self._unit(k)

    def _unit(self, x: Tensor) -> Tensor:
        """(sqrt(1/2), x / |x| / sqrt(pi)): the product of two of them is 1/2 + cos / pi."""
        return torch.cat([x.new_full((*x.shape[:-1], 1), 0.5**0.5), F.normalize(x, dim=-1) * math.pi**-0.5], -1)
