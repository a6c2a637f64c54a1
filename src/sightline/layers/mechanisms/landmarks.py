"""Landmarks of SOFT: points among the queries of a map or a sequence.

A fully masked patch has no landmark, so that masked tokens change nothing; `nowhere` takes its place.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sightline.layers.core import Grid
from sightline.ops.checks import accumulate_dtype, is_symbolic, is_traced, padding
from sightline.util.errors import InputError

KINDS = ("conv", "pool", "random", "first")
KEPT = 32  # matrices of the parts of maps that are kept
FAR = 64.0  # from any query: exp(-FAR^2 / 2) is zero in float32


class Landmarks(nn.Module):
    """Landmarks of queries: one for every patch of ratio x ratio of a map, or of `ratio` tokens of a sequence.

    Kinds:
        conv: a strided convolution shared by the heads, layer norm and GELU.
        pool: the mean query of a patch.
        random: queries picked by a fixed shuffle of the tokens, the same for all images with as many tokens.
        first: the first queries.

    Args:
        side: if given, `side` x `side` landmarks of a map, averaged down or stretched to it; at most `side` of a
            sequence, means of segments of patches.
    """

    def __init__(self, head_dim: int, ratio: int, side: int = 0, kind: str = "conv", sequence: bool = False) -> None:
        super().__init__()
        self.patch = (1 if sequence else ratio, ratio)
        self.side, self.kind, self.sequence = side, kind, sequence
        if kind == "conv":
            conv = nn.Conv1d if sequence else nn.Conv2d
            self.conv = conv(head_dim, head_dim, ratio, ratio, bias=False)
            self.norm = nn.LayerNorm(head_dim)

    def forward(self, q: Tensor, grid: Grid, scale: float = 1.0, counts: Tensor | None = None) -> Tensor:
        """(B, h * w, H, D), to be multiplied by `scale` and zero where `counts` (B, h * w) is false -> (B, m, H, D)."""
        if self.kind == "pool" and self.side and not self.sequence:
            points, some = map_means(q, counts, grid, self.side)
        else:
            points, some = self._points(q, grid, counts)
        points = points * scale
        if self.kind == "conv":
            points = F.gelu(self.norm(points))
        return points if some is None else torch.where(some[:, :, None, None], points, nowhere(points))

    def _points(self, q: Tensor, grid: Grid, counts: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The landmarks before scale and norm, and which of them are there, (B, m); None for all."""
        tokens = q.shape[1]
        q, counts, grid = _filled(q, counts, grid, self.patch)
        cut = (grid[0] // self.patch[0], grid[1] // self.patch[1])
        patches = cut[0] * cut[1]
        held = None if counts is None else _patches(counts[:, :, None, None], cut, self.patch).flatten(2)  # B m size
        some = None if held is None else held.any(-1)
        most = min(self.side or patches, patches) if self.sequence else self.side**2 or patches
        if self.kind in ("random", "first"):
            if not is_symbolic(most, tokens) and most > tokens:
                raise InputError(
                    f"soft(landmark={self.kind},landmarks={most}): the image has only {tokens} tokens; "
                    f"use fewer landmarks, or landmark=pool"
                )
            there = counts if self.side and not self.sequence else some
            return picked(q, counts, None if there is None else there.sum(1).clamp(max=most), most, self.kind)
        parts = _patches(q, cut, self.patch)  # B m H size D
        if self.kind == "conv":
            # Patches do not overlap, so the convolution is one matrix product; a convolution proper is wrong in
            # bfloat16 on some processors (oneDNN in torch 2.11).
            points = F.linear(parts.flatten(3), self.conv.weight.flatten(2).transpose(1, 2).flatten(1))  # B m H D
        elif held is None:
            points = parts.mean(3)
        else:
            points = parts.sum(3) / held.sum(-1).clamp(min=1).to(q.dtype)[:, :, None, None]
        if self.side and not self.sequence:
            return map_means(points, some, cut, self.side)
        if most < patches:
            some = points.new_ones(points.shape[:2], dtype=torch.bool) if some is None else some
            means, some = segment_means(points.transpose(1, 2), some, most)
            points = means.transpose(1, 2)
        return points, some


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


def _patches(x: Tensor, cut: Grid, patch: Grid) -> Tensor:
    """(B, h * w, H, D) -> (B, m, H, size, D), the tokens of every patch."""
    x = x.unflatten(1, (cut[0] * patch[0], cut[1] * patch[1]))
    x = x.unflatten(2, (cut[1], patch[1])).unflatten(1, (cut[0], patch[0])).permute(0, 1, 3, 5, 2, 4, 6)
    return x.flatten(1, 2).flatten(3, 4)


def _filled(q: Tensor, counts: Tensor | None, grid: Grid, patch: Grid) -> tuple[Tensor, Tensor | None, Grid]:
    """A map padded to whole patches, at least one; the padding does not count."""
    bottom, right = (
        padding(side, size) if is_symbolic(side) or side else size for side, size in zip(grid, patch, strict=True)
    )
    if not is_symbolic(bottom, right) and not bottom and not right:
        return q, counts, grid
    counts = q.new_ones(q.shape[:2], dtype=torch.bool) if counts is None else counts
    maps = F.pad(q.unflatten(1, grid), (0, 0, 0, 0, 0, right, 0, bottom))
    held = F.pad(counts.unflatten(1, grid), (0, right, 0, bottom))
    return maps.flatten(1, 2), held.flatten(1), (grid[0] + bottom, grid[1] + right)


def map_means(x: Tensor, counts: Tensor | None, grid: Grid, side: int) -> tuple[Tensor, Tensor | None]:
    """Means of the tokens x (B, h * w, H, D) that count in side x side equal parts of the map; which parts have one.

    Tokens on the border of two parts count in both, by their share.
    """
    covered = areas(side, grid, x)
    means = covered @ x.flatten(2)  # x is read once, as it lies
    if counts is None:
        return means.unflatten(2, x.shape[2:]), None
    share = covered @ counts[:, :, None].to(x.dtype)  # B m 1
    means = means / share.where(share > 0, torch.ones_like(share))
    return means.unflatten(2, x.shape[2:]), share.squeeze(2) > 0


def areas(side: int, grid: Grid, like: Tensor) -> Tensor:
    """(side * side, h * w): how much of every part of a map each of its tokens covers.

    Kept from call to call, as it takes dozens of small steps; but not in a graph, whose tensors are not made yet or go
    with it.
    """
    if is_traced(like) or torch.jit.is_tracing():  # first: the compiler breaks its graph at what follows
        return _areas(side, grid, like)
    if like.is_cuda and torch.cuda.is_current_stream_capturing():
        return _areas(side, grid, like)
    key = (side, *grid, like.dtype, like.device)
    found = _kept.get(key)
    if found is None:
        if len(_kept) >= KEPT:
            _kept.clear()
        with torch.inference_mode(False):
            found = _kept[key] = _areas(side, grid, like)
    return found


_kept: dict[tuple, Tensor] = {}


def _areas(side: int, grid: Grid, like: Tensor) -> Tensor:
    height, width = (shares(side, length, like) for length in grid)
    return (height[:, None, :, None] * width[:, None, :]).flatten(2).flatten(0, 1)


def shares(parts: int, length: int, like: Tensor) -> Tensor:
    """(parts, length): how much of every equal part of a line each of its `length` tokens covers."""
    token = torch.arange(length, device=like.device) * parts  # whole numbers: the line is length * parts long
    part = torch.arange(parts, device=like.device)[:, None] * length
    overlap = torch.minimum(token + parts, part + length) - torch.maximum(token, part)
    return (overlap.clamp(min=0).to(accumulate_dtype(like.dtype)) / length).to(like.dtype)
