"""SOFT and SOFT++ on a sequence: landmarks of runs of tokens, and a convolution along them."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sightline.layers.conv import add_neighbours
from sightline.layers.core import Core, Grid, counted
from sightline.layers.rivals.nystromformer import segment_means
from sightline.layers.sequence.taps import HeadTaps
from sightline.layers.soft import KERNELS
from sightline.ops import soft_attention
from sightline.ops.soft.reference import gaussian, landmark_inverse

LANDMARKS = 128  # of the longest sequence, where no ratio is given
FAR = 64.0  # from any query: exp(-FAR^2 / 2) is zero in float32


class SequenceSoftCore(Core):
    """SOFT. A run without any token that counts has no landmark, so that padding changes nothing.

    Args:
        ratio: tokens from landmark to landmark; 0 for about 128 landmarks over `length`.
        landmarks: where given, at most this many: means of segments of those of `ratio`, one for each of them at most.
        iterations: Newton-Raphson steps of the inverse.
    """

    shared_qk = True
    normalized = False

    def __init__(
        self, dim: int, num_heads: int, length: int, *, ratio: int = 0, landmarks: int = 0, iterations: int = 20
    ) -> None:
        super().__init__(dim, num_heads)
        if landmarks < 0 or ratio < 0 or iterations < 1:
            raise ValueError(
                f"soft(ratio={ratio},landmarks={landmarks},iterations={iterations}): give a ratio of at least 1, or 0 "
                f"for about {LANDMARKS} landmarks, a number of landmarks, or 0 to follow the ratio, and a step or more"
            )
        self.ratio = ratio or max(1, length // LANDMARKS)
        self.iterations = iterations
        self.landmarks = RunLandmarks(self.head_dim, self.ratio, landmarks)
        self.neighbours = HeadTaps(num_heads, KERNELS.get(self.ratio, 3 if self.ratio < 8 else 9))

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
        q = q * self.head_dim**-0.25
        landmarks = self._landmarks(q, prefix, counted(key_mask, q))
        out = soft_attention(q, v, landmarks, normalized=self.normalized, iterations=self.iterations, key_mask=key_mask)
        return add_neighbours(out, self.neighbours, v, grid=grid, prefix=prefix, key_mask=key_mask, local=local)

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
        counts = counted(key_mask, q)
        q = q * self.head_dim**-0.25
        landmarks = self._landmarks(q, prefix, counts).transpose(1, 2)  # B H m D
        weights = gaussian(q.transpose(1, 2), landmarks)  # B H N m
        inverse = landmark_inverse(landmarks, self.normalized, self.iterations)
        rows = weights[:, :, queries] @ inverse @ weights.transpose(-1, -2)
        return rows.masked_fill(~counts[:, None, None, :], 0)

    def _landmarks(self, q: Tensor, prefix: int, counts: Tensor) -> Tensor:
        places, counts = q[:, prefix:], counts[:, prefix:]
        return self.landmarks(places.masked_fill(~counts[:, :, None, None], 0), counts).to(q.dtype)


class SequenceSoftNormCore(SequenceSoftCore):
    """SOFT++: the inverse between the landmarks is normalised by the square roots of their degrees."""

    normalized = True


class RunLandmarks(nn.Module):
    """Landmarks by a strided convolution of the queries, shared by the heads; then layer norm and GELU."""

    def __init__(self, head_dim: int, ratio: int, number: int = 0) -> None:
        super().__init__()
        self.number = number
        self.conv = nn.Conv1d(head_dim, head_dim, ratio, ratio, bias=False)
        self.norm = nn.LayerNorm(head_dim)

    def forward(self, q: Tensor, counts: Tensor) -> Tensor:
        """q (B, N, H, D), zero where `counts` (B, N) is false -> (B, m, H, D)."""
        size = self.conv.stride[0]
        rest = -q.shape[1] % size or (0 if q.shape[1] else size)
        runs = F.pad(q, (0, 0, 0, 0, 0, rest)).unflatten(1, (-1, size)).transpose(2, 3)  # B m H size D
        points = F.linear(runs.flatten(3), self.conv.weight.transpose(1, 2).flatten(1))  # B m H D
        some = F.pad(counts, (0, rest)).unflatten(1, (-1, size)).any(-1)  # B m
        if self.number:
            means, some = segment_means(points.transpose(1, 2), some, min(self.number, points.shape[1]))
            points = means.transpose(1, 2)
        return torch.where(some[:, :, None, None], F.gelu(self.norm(points)), nowhere(points))


def nowhere(like: Tensor) -> Tensor:
    """Points (1, m, 1, D) far from the tokens and from each other, for the places of landmarks that are not there.

    Their Gaussians are zero but for themselves. The matrix of the landmarks is then one of two blocks, of which that of
    the missing ones is the identity: it leaves norm, iteration and inverse of the other as they are without it.
    """
    number, dim = like.shape[1], like.shape[3]
    place = torch.arange(number, device=like.device)
    points = F.one_hot(place % dim, dim).to(like.dtype) * (FAR * (1 + place // dim)).to(like.dtype)[:, None]
    return points[None, :, None]
