"""Effective rank of attention: the exponential of the entropy of its singular values (Roy and Vetterli, 2007).

A matrix with r equal singular values has effective rank r. Where attention is a product of thin matrices L R^T, its
singular values are those of the small matrix R_L R_R^T of their QR decompositions. Softmax has no such factors: its
rows are stacked, all of them up to a limit, else as many evenly spread ones, whose rank is at most that of the whole.
Attention in windows is block diagonal, and its singular values are those of the windows together.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sightline.analysis.capture import BlockCall, CoreCall
from sightline.analysis.factors import factors_of, singular_values
from sightline.analysis.rows import rows_of

FACTORS, ROWS, SAMPLE = "factors", "rows", "sampled rows"


@dataclass(frozen=True)
class Rank:
    """Of one block and one image.

    Args:
        effective: effective rank, one number a head.
        bound: the most that the mechanism allows: columns of its factors, or rows.
        tokens: queries of the block.
        method: factors, rows, or sampled rows.
    """

    block: str
    mechanism: str
    effective: list[float]
    bound: int
    tokens: int
    method: str


@torch.no_grad()
def measure_rank(blocks: Sequence[BlockCall], limit: int = 1024) -> list[Rank]:
    """The effective rank of every block; without factors from at most `limit` rows of a window."""
    return [_measure(block, limit) for block in blocks]


def effective_rank(values: Tensor) -> Tensor:
    """exp(entropy) of singular values (..., r), each over their sum; 0 for a zero matrix."""
    total = values.sum(-1, keepdim=True)
    shares = values / total.clamp(min=torch.finfo(values.dtype).tiny)
    entropy = -torch.special.xlogy(shares, shares).sum(-1)
    return torch.where(total[..., 0] > 0, entropy.exp(), 0.0)


def _measure(block: BlockCall, limit: int) -> Rank:
    ranks, bound, method = [], 0, FACTORS
    for part in block.parts:
        found = [_window(part, window, limit) for window in range(part.call["q"].shape[0])]
        ranks.append(effective_rank(torch.cat([values for values, _, _ in found], -1)))
        bound = max(bound, sum(most for _, most, _ in found))
        method = found[0][2]
    return Rank(block.name, block.mechanism, torch.cat(ranks).tolist(), bound, block.tokens, method)


def _window(part: CoreCall, window: int, limit: int) -> tuple[Tensor, int, str]:
    """Singular values (heads, r) of one window, how many there can be, and how they were found."""
    tokens = torch.where(part.positions[window] > 0)[0]  # padding asks nothing
    factors = factors_of(part.core, part.call, window)
    if factors is not None:
        left, right = factors[0][:, tokens], factors[1]
        return product_values(left, right), min(left.shape[1], right.shape[1], right.shape[2]), FACTORS
    method = ROWS if len(tokens) <= limit else SAMPLE
    if method == SAMPLE:
        tokens = tokens[(torch.arange(limit, device=tokens.device) * len(tokens)) // limit]
    rows = rows_of(part.core, part.call, window, tokens).double()
    return singular_values(rows), min(rows.shape[1:]), method


def product_values(left: Tensor, right: Tensor) -> Tensor:
    """Singular values of L R^T for L (H, N, r), R (H, M, r), in O((N + M) r^2)."""
    small = torch.linalg.qr(left).R @ torch.linalg.qr(right).R.transpose(-1, -2)
    return singular_values(small)
