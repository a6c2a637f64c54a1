"""Focused linear attention: features that point where their largest channels do, and a convolution of v, O(N d^2).

FLatten Transformer: Vision Transformer using Focused Linear Attention (ICCV 2023).
    phi(x) = f(relu(x)),   f(x) = |x| x^p / |x^p|, powers by channel: the length stays, the direction sharpens
    out = linear attention with phi + dwconv(v)
"""

import torch
from torch import Tensor, nn

from sightline.layers.conv import SharedConv
from sightline.layers.mechanisms.baselines.kernel import KernelCore


class FocusedCore(KernelCore):
    """Focused linear attention.

    Args:
        power: the exponent p of the focusing function.
        kernel: side of the depthwise convolution of v, which raises the rank of the output; 0 for none.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        stride: int = 16,
        length: int | None = None,
        *,
        power: int = 3,
        kernel: int = 5,
    ) -> None:
        super().__init__(dim, num_heads, stride, length)
        self.power = power
        self.neighbours = SharedConv(self.head_dim, kernel, length is not None) if kernel else None

    def features(self, q: Tensor, k: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        return focus(q.relu(), self.power), focus(k.relu(), self.power)


def focus(x: Tensor, power: int) -> Tensor:
    """|x| x^p / |x^p| along the last axis, for x without negative entries; zero stays zero."""
    tiny = torch.finfo(x.dtype).tiny
    # The direction does not depend on a factor; with one as the largest entry no power of it vanishes or overflows.
    sharp = (x / x.detach().amax(-1, keepdim=True).clamp(min=tiny)).pow(power)
    return nn.functional.normalize(sharp, dim=-1) * torch.linalg.vector_norm(x, dim=-1, keepdim=True)
