"""Confusions: pairs of clearly different queries that a block gives nearly the same scores (the InLine paper's Fig. 2).

The published figure does not state its thresholds. Here two queries of a head are clearly different if their distance
is more than `query` times the longer one's length, and two rows of scores nearly the same if their distance is at most
`score` times the longer row's length. Attention that is nearly even gives all queries nearly the same
scores; so confusions are also counted with even attention subtracted from the rows, which leaves what tells keys apart.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sightline.analysis.capture import BlockCall, spread
from sightline.analysis.figures import histogram_figure
from sightline.analysis.study import Facts, Study, Subject, by_layer, mean


@dataclass(frozen=True)
class Thresholds:
    """Relative distances: queries further apart than `query` are different, rows no further than `score` the same."""

    query: float = 0.5
    score: float = 0.01


USUAL = Thresholds()
KINDS = ("confused", "centred", "different")


@dataclass(frozen=True)
class Confusions:
    """One block on one image, over all heads.

    Args:
        confused: pairs of clearly different queries with nearly the same scores.
        centred: the same with even attention subtracted from the scores.
        different: pairs of clearly different queries.
    """

    block: str
    confused: int
    centred: int
    different: int


def count_confusions(blocks: Sequence[BlockCall], thresholds: Thresholds = USUAL, limit: int = 128) -> list[Confusions]:
    """Count the confusions of every block, among at most `limit` positions of the map, evenly spread.

    Costs O(limit N) per head: only the rows of those queries are computed.
    """
    found = []
    for block in blocks:
        tokens = spread_tokens(block, limit)
        rows = block.rows(tokens)
        each = (rows, less_even(block, tokens, rows))
        counts = [pairs(*matched(block.queries(tokens), weights), thresholds) for weights in each]
        literal, less = (int(confused.sum()) for confused, _ in counts)
        found.append(Confusions(block.name, literal, less, int(counts[0][1].sum())))
    return found


def spread_tokens(block: BlockCall, limit: int) -> Tensor:
    """At most `limit` tokens after the prefix, evenly spread."""
    return torch.tensor(spread(range(block.prefix, block.tokens), limit))


def less_even(block: BlockCall, tokens: Tensor, rows: Tensor) -> Tensor:
    """The rows (heads, Q, M) of chosen tokens with even attention, of the same sum, subtracted."""
    visible = block.visible(tokens).to(rows).repeat_interleave(len(rows) // len(block.parts), 0)
    return rows - rows.sum(-1, keepdim=True) / visible.sum(-1, keepdim=True) * visible


def matched(queries: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Queries (H, Q, D) and rows (heads, Q, M) with the same heads.

    If every channel is a head (hydra), the queries are cut likewise; of heads at several scales (enhanced), the first
    ones belong to the queries themselves.
    """
    heads, _, dim = queries.shape
    if len(rows) == heads * dim and dim > 1:
        return queries.permute(0, 2, 1).reshape(heads * dim, -1, 1), rows
    return queries, rows[:heads]


def pairs(queries: Tensor, rows: Tensor, thresholds: Thresholds) -> tuple[Tensor, Tensor]:
    """For queries (H, Q, D) and their rows (H, Q, M): confused pairs and clearly different ones, each (H,)."""
    upper = torch.ones(queries.shape[1], queries.shape[1], dtype=torch.bool, device=queries.device).triu(1)
    different = (distances(queries, queries) > thresholds.query) & upper
    confused = different & (distances(rows, rows) <= thresholds.score)
    return confused.sum((1, 2)), different.sum((1, 2))


def distances(x: Tensor, y: Tensor) -> Tensor:
    """||x_i - y_j|| over the longer of the two, (H, Q, P); 0 for two zeros."""
    # Not through a matrix product: it would lose the small distances of interest.
    apart = torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")
    longer = torch.maximum(x.norm(dim=-1)[:, :, None], y.norm(dim=-1)[:, None, :])
    return apart / longer.clamp(min=torch.finfo(x.dtype).tiny)


def study_confusions(subjects: Sequence[Subject], thresholds: Thresholds = USUAL, queries: int = 128) -> Study:
    """Confusions of every image, over all blocks and heads."""
    results: list[Facts] = []
    rows: list[list[str]] = []
    counts: dict[str, dict[str, list[int]]] = {"confused": {}, "centred": {}}
    layers = by_layer(subjects, lambda blocks: count_confusions(blocks, thresholds, queries), _summarize)
    for title, blocks in layers.items():
        totals = {key: [sum(image) for image in zip(*(block[key] for block in blocks), strict=True)] for key in KINDS}
        pairs = max(sum(totals["different"]), 1)
        shares = {f"{key}_share": sum(totals[key]) / pairs for key in counts}
        results.append({"title": title, **totals, **shares, "blocks": blocks})
        row = [title]
        for key, series in counts.items():
            series[title] = found = totals[key]
            row += [f"{mean(found):,.1f}", f"{min(found):,}", f"{max(found):,}", f"{100 * shares[f'{key}_share']:.3f}"]
        rows.append(row)
    title, x = "Confusions per image, all layers and heads", "confused pairs of queries"
    figures = {
        "confusions": histogram_figure(title, x, counts["confused"]),
        "confusions-centred": histogram_figure(f"{title}, uniform attention subtracted", x, counts["centred"]),
    }
    facts: Facts = {
        "query_distance": thresholds.query, "score_distance": thresholds.score, "queries": queries,
        "subjects": results,
    }  # fmt: skip
    return Study(
        "confusions", "Pairs of different queries with the same scores (InLine paper, Fig. 2)", facts, figures,
        ("model", "mean", "least", "most", "% of pairs", "centered, mean", "least", "most", "% of pairs"), rows,
        [f"A confusion is a pair of queries further apart than {thresholds.query:g} of the longer one's length whose "
         f"scores differ by at most {thresholds.score:g} of the longer row's length, in one head of one layer, among "
         f"at most {queries} evenly spread queries per image; centered: with uniform attention subtracted from the "
         "scores, so that attention which is nearly uniform does not count as confusion. The paper publishes no "
         "thresholds."],
    )  # fmt: skip


def _summarize(items: Sequence[Confusions]) -> Facts:
    """The counts of a layer, by image."""
    return {"block": items[0].block, **{key: [getattr(item, key) for item in items] for key in KINDS}}
