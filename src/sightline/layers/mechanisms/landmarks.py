"""Landmarks of SOFT: points among the queries of a map or a sequence.

A fully masked patch has no landmark, so that masked tokens change nothing; `nowhere` takes its place.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sightline.layers.core import Grid
from sightline.layers.patch import pad_to_multiple
from sightline.util.errors import InputError

KINDS = ("conv", "pool", "random", "first")
FAR = 64.0  # from any query: exp(-FAR^2 / 2) is zero in float32


class Landmarks(nn.Module):
    """Landmarks of a map of queries: one for every patch of ratio x ratio, or `side` x `side` of them.

    Kinds:
        conv: a strided convolution shared by the heads, averaged down or stretched to `side`, layer norm and GELU.
        pool: the mean query of a patch.
        random: queries picked by a fixed shuffle of the tokens, the same for all images with as many tokens.
        first: the first queries.
    """

    def __init__(self, head_dim: int, ratio: int, side: int = 0, kind: str = "conv") -> None:
        super().__init__()
        self.ratio, self.side, self.kind = ratio, side, kind
        if kind == "conv":
            self.conv = nn.Conv2d(head_dim, head_dim, ratio, ratio, bias=False)
            self.norm = nn.LayerNorm(head_dim)

    def forward(self, q: Tensor, grid: Grid, scale: float = 1.0, counts: Tensor | None = None) -> Tensor:
        """(B, h * w, H, D), to be multiplied by `scale` and zero where `counts` (B, h * w) is false -> (B, m, H, D)."""
        down, across = (self.side or -(-size // self.ratio) for size in grid)
        if self.kind == "conv":
            points, some = self._conv(q, grid, counts)
            points = F.gelu(self.norm(points * scale))
        elif self.kind == "pool":
            if not self.side:
                q, counts, grid = _filled(q, counts, grid, self.ratio)
            points, some = _means(q, counts, grid, (down, across))
            points = points * scale
        else:
            if down * across > q.shape[1]:
                raise InputError(
                    f"soft(landmark={self.kind},landmarks={down * across}): the image has only {q.shape[1]} tokens; "
                    f"use fewer landmarks, or landmark=pool"
                )
            points, some = picked(q, counts, self._number(counts, grid), down * across, self.kind)
            points = points * scale
        return points if some is None else torch.where(some[:, :, None, None], points, nowhere(points))

    def _number(self, counts: Tensor | None, grid: Grid) -> Tensor | None:
        """How many landmarks every image has, (B,); None for all of them."""
        if counts is None:
            return None
        return counts.sum(1).clamp(max=self.side**2) if self.side else _patches(counts, grid, self.ratio).sum(1)

    def _conv(self, q: Tensor, grid: Grid, counts: Tensor | None) -> tuple[Tensor, Tensor | None]:
        batch, _, heads, dim = q.shape
        size = self.ratio
        maps = pad_to_multiple(q.reshape(batch, *grid, heads * dim).permute(0, 3, 1, 2), size).permute(0, 2, 3, 1)
        down, across = maps.shape[1] // size, maps.shape[2] // size
        # Patches do not overlap, so the convolution is one matrix product; a convolution proper is wrong in bfloat16 on
        # some processors (oneDNN in torch 2.11).
        patches = maps.reshape(batch, down, size, across, size, heads, dim).permute(0, 1, 3, 5, 2, 4, 6)
        points = F.linear(patches.flatten(4), self.conv.weight.permute(0, 2, 3, 1).flatten(1))  # B down across H D
        points = points.flatten(1, 2)
        some = None
        if counts is not None:
            some = _patches(counts, grid, size)
            points = points.masked_fill(~some[:, :, None, None], 0)
        return _means(points, some, (down, across), (self.side, self.side)) if self.side else (points, some)


class SequenceLandmarks(nn.Module):
    """Landmarks of a sequence of queries: one for every run of `ratio`, or `number` at most.

    The kinds are those of `Landmarks`; conv and pool take the means of segments of runs if there are more runs.
    """

    def __init__(self, head_dim: int, ratio: int, number: int = 0, kind: str = "conv") -> None:
        super().__init__()
        self.ratio, self.number, self.kind = ratio, number, kind
        if kind == "conv":
            self.conv = nn.Conv1d(head_dim, head_dim, ratio, ratio, bias=False)
            self.norm = nn.LayerNorm(head_dim)

    def forward(self, q: Tensor, grid: Grid, scale: float = 1.0, counts: Tensor | None = None) -> Tensor:
        """(B, N, H, D), to be multiplied by `scale` and zero where `counts` (B, N) is false -> (B, m, H, D)."""
        size = self.ratio
        rest = -q.shape[1] % size or (0 if q.shape[1] else size)
        counts = q.new_ones(q.shape[:2], dtype=torch.bool) if counts is None else counts
        held = F.pad(counts, (0, rest)).unflatten(1, (-1, size))  # B m size
        some = held.any(-1)
        number = min(self.number, some.shape[1]) or some.shape[1]
        q = F.pad(q * scale, (0, 0, 0, 0, 0, rest))
        if self.kind in ("first", "random"):
            points, there = picked(q, held.flatten(1), some.sum(1).clamp(max=number), number, self.kind)
            assert there is not None
            return torch.where(there[:, :, None, None], points, nowhere(points))
        runs = q.unflatten(1, (-1, size)).transpose(2, 3)  # B m H size D
        if self.kind == "conv":
            points = F.linear(runs.flatten(3), self.conv.weight.transpose(1, 2).flatten(1))  # B m H D
        else:
            points = runs.sum(3) / held.sum(-1).clamp(min=1).to(q.dtype)[:, :, None, None]
        if number < some.shape[1]:
            means, some = segment_means(points.transpose(1, 2), some, number)
            points = means.transpose(1, 2)
        if self.kind == "conv":
            points = F.gelu(self.norm(points))
        return torch.where(some[:, :, None, None], points, nowhere(points))


def segment_means(x: Tensor, counts: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """Means of the tokens x (B, H, N, D) that count (B, N), in `number` segments whose lengths differ by one at most.

    Returns the means (B, H, m, D), and which segments have a token (B, m): all, unless fewer tokens count than that.
    """
    total = counts.sum(1, keepdim=True).clamp(min=number)
    segment = (counts.cumsum(1) - 1) * number // total  # B N
    member = (segment.unsqueeze(1) == torch.arange(number, device=x.device)[:, None]) & counts.unsqueeze(1)  # B m N
    size = member.sum(-1, keepdim=True)
    share = member.to(x.dtype) / size.clamp(min=1)
    return share.unsqueeze(1) @ x, size.squeeze(-1) > 0


def nowhere(like: Tensor) -> Tensor:
    """Points (1, m, 1, D) far from the tokens and from each other, in place of landmarks that are missing.

    Their Gaussians are zero but for themselves. The matrix of the landmarks then has two blocks, and that of
    the missing ones is the identity: it leaves norm, iteration and inverse of the other as they are without it.
    """
    number, dim = like.shape[1], like.shape[3]
    index = torch.arange(number, device=like.device)
    points = F.one_hot(index % dim, dim).to(like.dtype) * (FAR * (1 + index // dim)).to(like.dtype)[:, None]
    return points[None, :, None]


def picked(
    q: Tensor, counts: Tensor | None, number: Tensor | None, most: int, kind: str
) -> tuple[Tensor, Tensor | None]:
    """The first queries that count, or some of them in a fixed shuffle, and which of the `most` are there: `number`."""
    index = torch.arange(q.shape[1], device=q.device)[None]
    if counts is None or number is None:
        key = scrambled(index, q.shape[1]) if kind == "random" else index
        return q[:, key[0].argsort()[:most]], None
    rank = counts.cumsum(1) - 1
    key = scrambled(rank, counts.sum(1, keepdim=True)) if kind == "random" else rank
    order = key.masked_fill(~counts, 2**32).argsort(1)[:, :most]
    points = q.gather(1, order[:, :, None, None].expand(-1, -1, *q.shape[2:]))
    return points, index[:, :most] < number[:, None]


def scrambled(index: Tensor, count: int | Tensor) -> Tensor:
    """Numbers of 32 bits that look random, depend on indices and `count` only, and differ from index to index."""
    for factor in (2654435761, 2246822519):
        index = (index * factor + count) % 2**32
        index = index ^ (index >> 15)
    return index


def _patches(counts: Tensor, grid: Grid, size: int) -> Tensor:
    """Which patches of size x size have a token that counts, (B, patches)."""
    return F.max_pool2d(counts.unflatten(1, grid).float(), size, ceil_mode=True).flatten(1) > 0


def _filled(q: Tensor, counts: Tensor | None, grid: Grid, size: int) -> tuple[Tensor, Tensor | None, Grid]:
    """A map padded to whole patches; the padding does not count."""
    bottom, right = (-side % size for side in grid)
    if not bottom and not right:
        return q, counts, grid
    counts = q.new_ones(q.shape[:2], dtype=torch.bool) if counts is None else counts
    maps = F.pad(q.unflatten(1, grid), (0, 0, 0, 0, 0, right, 0, bottom))
    held = F.pad(counts.unflatten(1, grid), (0, right, 0, bottom))
    return maps.flatten(1, 2), held.flatten(1), (grid[0] + bottom, grid[1] + right)


def _means(x: Tensor, counts: Tensor | None, grid: Grid, size: Grid) -> tuple[Tensor, Tensor | None]:
    """Means of the points (B, h * w, H, D) that count in size[0] x size[1] parts of the map; which parts have one."""

    def pooled(x: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(x.unflatten(1, grid).permute(0, 3, 1, 2), size).flatten(2).transpose(1, 2)

    means = pooled(x.flatten(2))
    if counts is None:
        return means.unflatten(2, x.shape[2:]), None
    share = pooled(counts.to(x.dtype)[:, :, None])  # B m 1
    means = means / share.where(share > 0, torch.ones_like(share))
    return means.unflatten(2, x.shape[2:]), share.squeeze(2) > 0
