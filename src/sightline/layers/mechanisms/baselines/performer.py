"""Performer: softmax attention estimated by positive orthogonal random features, FAVOR+, O(N m d).

Rethinking Attention with Performers (ICLR 2021). With x' = x / d^(1/4) and Gaussian w_1 ... w_m,
    phi(x)_a = exp(w_a . x' - |x'|^2 / 2) / sqrt(m)
has E[phi(q) . phi(k)] = exp(q . k / sqrt(d)): the estimate of the kernel is unbiased, and of variance O(1 / m).
"""

import math

import torch
from torch import Tensor

from sightline.layers.mechanisms.baselines.kernel import KernelCore, from_exponents


class PerformerCore(KernelCore):
    """FAVOR+.

    Args:
        features: number m of random features; 0 for d ln d, which the paper's bound asks for.
        seed: of the draw. The draw is a buffer, saved with the weights; `redraw` makes another one.
    """

    projection: Tensor
    eps = 1e-30  # no row sum is below one, see `from_exponents`

    def __init__(
        self,
        dim: int,
        num_heads: int,
        stride: int = 16,
        length: int | None = None,
        *,
        features: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__(dim, num_heads, stride, length)
        self.register_buffer("projection", torch.empty(features or usual_features(self.head_dim), self.head_dim))
        self.redraw(seed)

    @torch.no_grad()
    def redraw(self, seed: int) -> None:
        """Other random features, the same for a seed on every device; between steps of training, for example."""
        if self.projection.device.type != "meta":
            count, dim = self.projection.shape
            self.projection.copy_(orthogonal_gaussians(count, dim, seed))

    def features(self, q: Tensor, k: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        return from_exponents(self.exponents(q), self.exponents(k), counts)

    def exponents(self, x: Tensor) -> Tensor:
        """w_a . x' - |x'|^2 / 2 of x (B, N, H, D): (B, N, H, m)."""
        x = x * self.head_dim**-0.25
        return x @ self.projection.to(x.dtype).T - x.square().sum(-1, keepdim=True) / 2


def usual_features(head_dim: int) -> int:
    """d ln d, at least one."""
    return max(1, math.ceil(head_dim * math.log(max(head_dim, 1))))


def orthogonal_gaussians(count: int, dim: int, seed: int) -> Tensor:
    """(count, dim): Gaussian vectors, orthogonal in blocks of `dim`; each alone has the distribution of a Gaussian."""
    generator = torch.Generator("cpu").manual_seed(seed)
    with torch.device("cpu"):
        blocks = []
        for _ in range(-(-count // dim)):
            basis, upper = torch.linalg.qr(torch.randn(dim, dim, dtype=torch.float64, generator=generator))
            blocks.append(basis * upper.diagonal().sign())  # signs that make the rotation uniform
        lengths = torch.randn(count, dim, dtype=torch.float64, generator=generator).norm(dim=1, keepdim=True)
        return torch.cat([block.T for block in blocks])[:count] * lengths
