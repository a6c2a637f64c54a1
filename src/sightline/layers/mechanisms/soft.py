"""SOFT and SOFT++ as cores: Gaussian attention through landmarks, O(N m d).

Softmax-free Linear Transformers (NeurIPS 2021; IJCV 2024).
"""

import math

import torch
from torch import Tensor

from sightline.layers.conv import HeadwiseConv
from sightline.layers.core import Core, Factors, Place, convolve
from sightline.layers.mechanisms.landmarks import KINDS, Landmarks
from sightline.ops import soft_attention
from sightline.ops.soft.reference import gaussian, landmark_inverse, landmark_matrix
from sightline.util.errors import InputError

KERNELS = {8: 9, 4: 5, 2: 3, 1: 3}  # landmark ratio -> side of the depthwise convolution of v
LANDMARKS = 128  # of the longest sequence, without a ratio


class SoftCore(Core):
    """SOFT. A fully masked patch, or run of a sequence, has no landmark.

    Args:
        ratio: tokens from landmark to landmark; 0 for landmarks 32 pixels apart at any depth, as published, and for
            about 128 landmarks of a sequence.
        landmarks: if given, always this many (a square number) at any image size; at most this many of a sequence.
        landmark: how landmarks are computed: "conv" (published), "pool", "random" or "first"; see `Landmarks`.
        iterations: Newton-Raphson steps of the inverse.
    """

    shared_qk = True
    inverts = True
    normalized = False

    def __init__(
        self,
        dim: int,
        num_heads: int,
        stride: int = 16,
        length: int | None = None,
        *,
        ratio: int = 0,
        landmarks: int = 0,
        landmark: str = "conv",
        iterations: int = 20,
    ) -> None:
        super().__init__(dim, num_heads, stride, length)
        if length is None and math.isqrt(landmarks) ** 2 != landmarks:
            raise InputError(f"soft(landmarks={landmarks}): give a square number such as 49, or 0 to follow the ratio")
        if landmark not in KINDS:
            raise InputError(f"soft(landmark={landmark}): give one of {', '.join(KINDS)}")
        self.iterations = iterations
        self.scale = self.head_dim**-0.25
        if length is None:
            self.ratio = ratio or max(1, 32 // stride)
            self.landmarks = Landmarks(self.head_dim, self.ratio, math.isqrt(landmarks), landmark)
            self.local = HeadwiseConv(num_heads, KERNELS.get(self.ratio, 3))
        else:
            self.ratio = ratio or max(1, length // LANDMARKS)
            self.landmarks = Landmarks(self.head_dim, self.ratio, landmarks, landmark, sequence=True)
            self.neighbours = HeadwiseConv(num_heads, KERNELS.get(self.ratio, 3 if self.ratio < 8 else 9), True)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, place: Place) -> Tensor:
        if place.local is not None:
            raise InputError("soft attention takes its keys from the queries' tokens; leave sr_ratios at 1")
        out = soft_attention(
            q, v, self.points(q, place), normalized=self.normalized, iterations=self.iterations, scale=self.scale,
            key_mask=place.key_mask,
        )  # fmt: skip
        if self.neighbours is not None:
            return self.add_local(out, v, place)
        prefix = place.prefix
        mixed = self.local(place.local_values(v), place.grid, out[:, prefix:])  # one pass over memory
        return torch.cat([out[:, :prefix], mixed], 1) if prefix else mixed

    def points(self, q: Tensor, place: Place) -> Tensor:
        """The landmarks (B, m, H, D) of the queries."""
        counts = None if place.key_mask is None else place.key_mask[:, place.prefix :]
        return self.landmarks(place.on_grid(q), place.grid, self.scale, counts).to(q.dtype)

    def factors(self, q: Tensor, k: Tensor, place: Place) -> Factors:
        points = self.points(q, place).transpose(1, 2)
        weights = gaussian(q.transpose(1, 2) * self.scale, points)  # B H N m
        left = weights @ landmark_inverse(points, self.normalized, self.iterations)
        return left, weights.masked_fill(~place.counts(k)[:, None, :, None], 0)

    def local_term(self, v: Tensor, place: Place) -> Tensor | None:
        return convolve(self.local if self.neighbours is None else self.neighbours, v, place)

    def newton_matrix(self, q: Tensor, place: Place) -> tuple[Tensor, Tensor]:
        matrix, step, _ = landmark_matrix(self.points(q, place).transpose(1, 2).float(), self.normalized)
        return matrix, step


class SoftNormCore(SoftCore):
    """SOFT++: the inverse between the landmarks is normalized by the square roots of their degrees."""

    normalized = True
