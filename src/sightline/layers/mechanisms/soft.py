"""SOFT and SOFT++ as cores: Gaussian attention through landmarks, O(N m d).

Softmax-free Linear Transformers (NeurIPS 2021; IJCV 2024).
"""

import math

import torch
from torch import Tensor, nn

from sightline.layers.core import Core, Grid, counted
from sightline.layers.mechanisms.landmarks import KINDS, Landmarks
from sightline.ops import headwise_conv, soft_attention
from sightline.ops.soft.reference import gaussian, landmark_inverse

KERNELS = {8: 9, 4: 5, 2: 3, 1: 3}  # landmark ratio -> side of the depthwise convolution of v


class SoftCore(Core):
    """SOFT.

    Args:
        ratio: tokens from landmark to landmark; 0 for landmarks 32 pixels apart at any depth, as published.
        landmarks: where given, always this many (a square number), at any image size.
        landmark: how landmarks are made: "conv" (published), "pool", "random" or "first"; see `Landmarks`.
        iterations: Newton-Raphson steps of the inverse.
    """

    shared_qk = True
    normalized = False

    def __init__(
        self,
        dim: int,
        num_heads: int,
        stride: int = 16,
        *,
        ratio: int = 0,
        landmarks: int = 0,
        landmark: str = "conv",
        iterations: int = 20,
    ) -> None:
        super().__init__(dim, num_heads, stride)
        if landmarks < 0 or math.isqrt(landmarks) ** 2 != landmarks:
            raise ValueError(f"soft(landmarks={landmarks}): give a square number such as 49, or 0 to follow the ratio")
        if ratio < 0 or iterations < 1:
            raise ValueError(
                f"soft(ratio={ratio},iterations={iterations}): give a ratio of at least 1, or 0 for "
                f"landmarks 32 pixels apart, and at least one step"
            )
        if landmark not in KINDS:
            raise ValueError(f"soft(landmark={landmark}): give one of {', '.join(KINDS)}")
        self.ratio = ratio or max(1, 32 // stride)
        self.iterations = iterations
        self.landmarks = Landmarks(self.head_dim, self.ratio, math.isqrt(landmarks), landmark)
        self.local = HeadwiseConv(num_heads, KERNELS.get(self.ratio, 3))

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
        if local is not None:
            raise ValueError("soft attention takes its keys from the queries' tokens; leave sr_ratios at 1")
        places, values, counts = q[:, prefix:], v[:, prefix:], None
        if key_mask is not None:
            counts = key_mask[:, prefix:]
            places, values = (x.masked_fill(~counts[:, :, None, None], 0) for x in (places, values))
        scale = self.head_dim**-0.25
        out = soft_attention(
            q, v, self.landmarks(places, grid, scale, counts).to(q.dtype), normalized=self.normalized,
            iterations=self.iterations, scale=scale, key_mask=key_mask,
        )  # fmt: skip
        mixed = self.local(values, grid, out[:, prefix:])
        return torch.cat([out[:, :prefix], mixed], 1) if prefix else mixed

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
        q = q * self.head_dim**-0.25
        places = q[:, prefix:].masked_fill(~counts[:, prefix:, None, None], 0)
        landmarks = self.landmarks(places, grid, counts=counts[:, prefix:]).to(q.dtype)
        return soft_rows(q, landmarks, queries, counts, self.normalized, self.iterations)


class SoftNormCore(SoftCore):
    """SOFT++: the inverse between the landmarks is normalised by the square roots of their degrees."""

    normalized = True


def soft_rows(
    q: Tensor, landmarks: Tensor, queries: Tensor, counts: Tensor, normalized: bool, iterations: int
) -> Tensor:
    """The weights of some queries over all keys, (B, H, queries, N), for q (B, N, H, D) and landmarks (B, m, H, D)."""
    points = landmarks.transpose(1, 2)
    weights = gaussian(q.transpose(1, 2), points)  # B H N m
    rows = weights[:, :, queries] @ landmark_inverse(points, normalized, iterations) @ weights.transpose(-1, -2)
    return rows.masked_fill(~counts[:, None, None, :], 0)


class HeadwiseConv(nn.Module):
    """Depthwise convolution of the values whose weights a head's channels share."""

    def __init__(self, num_heads: int, size: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(num_heads, num_heads, size, padding=size // 2, groups=num_heads, bias=False)

    def forward(self, v: Tensor, grid: Grid, add: Tensor | None = None) -> Tensor:
        """(B, h * w, H, D) -> the same, plus `add`."""
        return headwise_conv(v, self.conv.weight, grid, add=add)
