"""SOFT and SOFT++ as cores: Gaussian attention through landmarks, O(N m d).

Softmax-free Linear Transformers (NeurIPS 2021; IJCV 2024).
"""

import math

import torch.nn.functional as F
from torch import Tensor, nn

from sightline.layers.conv import depthwise_conv
from sightline.layers.core import Core, Grid, counted
from sightline.layers.patch import pad_to_multiple
from sightline.ops import soft_attention
from sightline.ops.soft.reference import gaussian, landmark_inverse

KERNELS = {8: 9, 4: 5, 2: 3, 1: 3}  # landmark ratio -> side of the depthwise convolution of v


class SoftCore(Core):
    """SOFT.

    Args:
        ratio: tokens from landmark to landmark; 0 for landmarks 32 pixels apart at any depth, as published.
        landmarks: where given, always this many (a square number), pooled from those of `ratio` at any image size.
        iterations: Newton-Raphson steps of the inverse.
    """

    shared_qk = True
    normalized = False

    def __init__(
        self, dim: int, num_heads: int, stride: int = 16, *, ratio: int = 0, landmarks: int = 0, iterations: int = 20
    ) -> None:
        super().__init__(dim, num_heads, stride)
        if landmarks < 0 or math.isqrt(landmarks) ** 2 != landmarks:
            raise ValueError(f"soft(landmarks={landmarks}): give a square number such as 49, or 0 to follow the ratio")
        if ratio < 0 or iterations < 1:
            raise ValueError(
                f"soft(ratio={ratio},iterations={iterations}): give a ratio of at least 1, or 0 for "
                f"landmarks 32 pixels apart, and at least one step"
            )
        self.ratio = ratio or max(1, 32 // stride)
        self.iterations = iterations
        self.landmarks = Landmarks(self.head_dim, self.ratio, math.isqrt(landmarks))
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
        q = q * self.head_dim**-0.25
        places, values = q[:, prefix:], v[:, prefix:]
        if key_mask is not None:
            hidden = ~key_mask[:, prefix:, None, None]
            places, values = places.masked_fill(hidden, 0), values.masked_fill(hidden, 0)
        out = soft_attention(
            q, v, self.landmarks(places, grid).to(q.dtype), normalized=self.normalized, iterations=self.iterations,
            key_mask=key_mask,
        )  # fmt: skip
        neighbours = self.local(values, grid)
        return out + (F.pad(neighbours, (0, 0, 0, 0, prefix, 0)) if prefix else neighbours)

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
        landmarks = self.landmarks(places, grid).to(q.dtype).transpose(1, 2)  # B H m D
        weights = gaussian(q.transpose(1, 2), landmarks)  # B H N m
        inverse = landmark_inverse(landmarks, self.normalized, self.iterations)
        rows = weights[:, :, queries] @ inverse @ weights.transpose(-1, -2)
        return rows.masked_fill(~counts[:, None, None, :], 0)


class SoftNormCore(SoftCore):
    """SOFT++: the inverse between the landmarks is normalised by the square roots of their degrees."""

    normalized = True


class Landmarks(nn.Module):
    """Landmarks by a strided convolution of the queries' map, shared by the heads; then layer norm and GELU.

    With `side` the map is averaged down, or stretched, to side x side landmarks before the norm.
    """

    def __init__(self, head_dim: int, ratio: int, side: int = 0) -> None:
        super().__init__()
        self.side = side
        self.conv = nn.Conv2d(head_dim, head_dim, ratio, ratio, bias=False)
        self.norm = nn.LayerNorm(head_dim)

    def forward(self, q: Tensor, grid: Grid) -> Tensor:
        """(B, h * w, H, D) -> (B, m, H, D)."""
        batch, _, heads, dim = q.shape
        size = self.conv.stride[0]
        maps = pad_to_multiple(q.reshape(batch, *grid, heads * dim).permute(0, 3, 1, 2), size).permute(0, 2, 3, 1)
        down, across = maps.shape[1] // size, maps.shape[2] // size
        # Patches do not overlap, so the convolution is one matrix product; a convolution proper is wrong in bfloat16 on
        # some processors (oneDNN in torch 2.11).
        patches = maps.reshape(batch, down, size, across, size, heads, dim).permute(0, 1, 3, 5, 2, 4, 6)
        points = F.linear(patches.flatten(4), self.conv.weight.permute(0, 2, 3, 1).flatten(1))  # B down across H D
        if self.side:
            pooled = F.adaptive_avg_pool2d(points.flatten(3).permute(0, 3, 1, 2), self.side)
            points = pooled.permute(0, 2, 3, 1).unflatten(-1, (heads, dim))
        return F.gelu(self.norm(points.flatten(1, 2)))


class HeadwiseConv(nn.Module):
    """Depthwise convolution of the values whose weights a head's channels share."""

    def __init__(self, num_heads: int, size: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(num_heads, num_heads, size, padding=size // 2, groups=num_heads, bias=False)

    def forward(self, v: Tensor, grid: Grid) -> Tensor:
        """(B, h * w, H, D) -> the same."""
        return depthwise_conv(v, self.conv.weight.repeat_interleave(v.shape[-1], 0), None, grid)
