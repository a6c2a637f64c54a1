"""Effective rank of attention: the exponential of the entropy of its singular values (Roy and Vetterli, 2007).

A matrix with r equal singular values has effective rank r. If attention is a product of thin matrices L R^T, its
singular values are those of the small matrix R_L R_R^T of their QR decompositions. Softmax has no such factors: its
rows are stacked, all of them up to a limit, else as many evenly spread ones, whose rank is at most that of the whole.
Attention in windows is block diagonal, and its singular values are those of the windows together.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sightline.analysis.capture import BlockCall, CoreCall, spread
from sightline.analysis.figures import layer_figure
from sightline.analysis.study import Facts, Study, Subject, by_layer, over_heads, short, titled

FACTORS, ROWS, SAMPLE = "factors", "rows", "sampled rows"


@dataclass(frozen=True)
class Rank:
    """One block on one image.

    Args:
        effective: effective rank per head.
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
    found = [_by_factors(part) or _by_rows(part, limit) for part in block.parts]
    ranks = torch.cat([effective_rank(values) for values, _, _ in found])
    bound = max(most for _, most, _ in found)
    return Rank(block.name, block.mechanism, ranks.tolist(), bound, block.tokens, found[0][2])


def _by_factors(part: CoreCall) -> tuple[Tensor, int, str] | None:
    """Singular values (heads, windows * r), how many there can be, and the method; None without factors."""
    factors = part.factors()
    if factors is None:
        return None
    asking = part.positions > 0  # windows N; padding has no queries
    left, right = factors[0].masked_fill(~asking[:, None, :, None], 0), factors[1]
    bound = asking.sum(1).clamp(max=min(right.shape[2:])).sum()
    return product_values(left, right).transpose(0, 1).flatten(1), int(bound), FACTORS


def _by_rows(part: CoreCall, limit: int) -> tuple[Tensor, int, str]:
    """The same from at most `limit` rows of each window."""
    found, bound, method = [], 0, ROWS
    for window in range(part.windows):
        tokens = torch.where(part.positions[window] > 0)[0]
        if len(tokens) > limit:
            tokens, method = tokens[spread(range(len(tokens)), limit)], SAMPLE
        rows = part.rows(window, tokens).double()
        found.append(singular_values(rows))
        bound += min(rows.shape[1:])
    return torch.cat(found, -1), bound, method


def product_values(left: Tensor, right: Tensor) -> Tensor:
    """Singular values of L R^T for L (..., N, r), R (..., M, r), in O((N + M) r^2)."""
    small = torch.linalg.qr(left).R @ torch.linalg.qr(right).R.transpose(-1, -2)
    return singular_values(small)


def singular_values(x: Tensor) -> Tensor:
    """Singular values (..., r) of float64 matrices, in falling order.

    LAPACK's fast routine returns NaN for some finite matrices of low rank. Theirs come from x^T x, which loses values
    below 1e-8 of the largest.
    """
    values = torch.linalg.svdvals(x)
    if bool(values.isnan().any()) and bool(x.isfinite().all()):
        thin = x if x.shape[-2] >= x.shape[-1] else x.transpose(-1, -2)
        squares = torch.linalg.eigvalsh(thin.transpose(-1, -2) @ thin)
        values = torch.where(values.isnan(), squares.clamp(min=0).sqrt().flip(-1), values)
    return values


def study_rank(subjects: Sequence[Subject], limit: int = 1024) -> Study:
    """The effective rank of the attention of every layer, mean over heads and images."""
    layers = by_layer(subjects, lambda blocks: measure_rank(blocks, limit), _summarize)
    rows = [
        [title, short(at["block"]), at["mechanism"], f"{at['rank']:.2f}", *map(str, (at["bound"], at["tokens"])),
         at["method"]]
        for title, each in layers.items() for at in each
    ]  # fmt: skip
    bounds = {f"bound, {title}": [float(at["bound"]) for at in each] for title, each in layers.items()}
    figure = layer_figure(
        "Effective rank of attention", "exp of the entropy of singular values", layers, "rank", bounds
    )
    axis = figure.axes[0]
    axis.set_yscale("log")
    axis.autoscale(axis="y")
    return Study(
        "rank", "Effective rank of attention", {"limit": limit, "subjects": titled(layers)}, {"rank": figure},
        ("model", "layer", "mechanism", "effective rank", "at most", "tokens", "from"), rows,
        ["The exponential of the entropy of the singular values: r equal ones give r. From the thin factors of "
         "the mechanism, without an N x N matrix; from stacked rows if it has none, at most "
         f"{limit} per window: sampled rows have at most the rank of the whole."],
    )  # fmt: skip


def _summarize(items: Sequence[Rank]) -> Facts:
    """The facts of a layer from its ranks in all images."""
    rest = {name: getattr(items[0], name) for name in ("bound", "tokens", "method")}
    ranks = over_heads("rank", [item.effective for item in items])
    return {"block": items[0].block, "mechanism": items[0].mechanism, **ranks, **rest}
