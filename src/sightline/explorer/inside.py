"""What is computed from the recorded call of one block: its local term, and which queries it confuses.

Shape letters: H heads, N tokens of the grid, M keys, D head dim.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sightline.analysis.capture import BlockCall, CoreCall
from sightline.analysis.confusions import USUAL, distances, less_even, matched, spread_tokens
from sightline.layers.core import Place

CHUNK = 1 << 24  # weights in memory at a time
PAIRED = 128  # queries whose pairs are counted
SCORES = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5)  # distances, over a length, up to which rows are the same
SCORE = 0.1


@torch.no_grad()
def has_local(block: BlockCall) -> bool:
    """Whether a block adds a local term to what its weights mix."""
    part = block.parts[0]
    return part.core.local_term(part.v[:1], part.place.select(slice(0, 1))) is not None


def local_row(block: BlockCall, token: int) -> Tensor:
    """The weights (H, N) of the local term of a token, mean over the channels of a head.

    They are zero outside of its neighborhood, and of a class token everywhere. A local term is linear in the values,
    channel by channel: its weights are its derivative.
    """
    return torch.cat([_local_row(block, part, token) for part in block.parts])


def _local_row(block: BlockCall, part: CoreCall, token: int) -> Tensor:
    windows, inside = part.locate(torch.tensor([token]))
    place, v = part.place.select(windows), part.v[windows]
    with torch.enable_grad():
        values = (v if place.local is None else place.local).detach().requires_grad_()
        term = _term(part, v, place, values)
        (slope,) = torch.autograd.grad(term[0, int(inside[0])].sum(), values)
    found = torch.zeros(part.core.num_heads, block.tokens + 1)  # the first column takes the padding
    found.index_add_(1, part.positions[windows[0]].cpu(), slope[0].mean(-1).t().float().cpu())
    return found[:, 1 + block.prefix :]


@torch.no_grad()
def local_matrix(block: BlockCall) -> Tensor:
    """`local_row` of all tokens at once, (H, tokens, N): what the local term makes of a one at each position."""
    return torch.cat([_local_matrix(block, part) for part in block.parts])


def _local_matrix(block: BlockCall, part: CoreCall) -> Tensor:
    found = torch.zeros(part.core.num_heads, block.tokens + 1, block.tokens + 1)
    for window, numbers in enumerate(part.positions.cpu()):
        nothing = torch.zeros_like((part.v if part.place.local is None else part.place.local)[:1])
        still = _term(part, part.v[:1], part.place.select(slice(window, window + 1)), nothing)
        for chunk in torch.arange(len(numbers)).split(max(1, CHUNK // nothing.numel())):
            ones = nothing.repeat(len(chunk), 1, 1, 1)
            ones[range(len(chunk)), chunk] = 1
            place = part.place.select(torch.full((len(chunk),), window))
            columns = (_term(part, ones, place, ones) - still).mean(-1).permute(2, 1, 0)  # H N chunk
            found[:, numbers[:, None], numbers[chunk]] = columns.float().cpu()
    return found[:, 1:, 1 + block.prefix :]


def _term(part: CoreCall, v: Tensor, place: Place, values: Tensor) -> Tensor:
    """The local term as a function of the values that it takes."""
    if place.local is None:
        term = part.core.local_term(values, place)
    else:
        term = part.core.local_term(v, replace(place, local=values))
    assert term is not None
    return term


@dataclass(frozen=True)
class Compared:
    """How queries are compared: in one head, or with all heads together; with even attention subtracted or not."""

    head: int | None
    centred: bool

    def sides(self, block: BlockCall, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Queries (1, Q, D) and rows (1, Q, M) of chosen tokens."""
        rows, queries = block.rows(tokens), block.queries(tokens)
        if self.centred:
            rows = less_even(block, tokens, rows)
        if self.head is None:
            return queries.transpose(0, 1).flatten(1)[None], rows.mean(0, keepdim=True)
        queries, rows = matched(queries, rows)
        return queries[self.head, None], rows[self.head, None]


def grid_tokens(block: BlockCall) -> Tensor:
    return torch.arange(block.prefix, block.tokens)


@torch.no_grad()
def confused_with(block: BlockCall, token: int, compared: Compared, score: float) -> list[int]:
    """The tokens of the grid that differ clearly from a query and get the same attention up to `score`; O(N) memory."""
    query, row = compared.sides(block, torch.tensor([token]))
    found = []
    for tokens in _chunks(block):
        queries, rows = compared.sides(block, tokens)
        same = (distances(query, queries) > USUAL.query) & (distances(row, rows) <= score)
        found.append(tokens[same[0, 0].cpu()] - block.prefix)
    return [int(token) for token in torch.cat(found)]


@torch.no_grad()
def confused_pairs(block: BlockCall, compared: Compared) -> Tensor:
    """For all pairs of tokens (N, N) the index of the first of SCORES at which they are confused, else len(SCORES)."""
    queries, rows = compared.sides(block, grid_tokens(block))
    first = torch.bucketize(distances(rows, rows), torch.tensor(SCORES, device=rows.device))
    return first.masked_fill(distances(queries, queries) <= USUAL.query, len(SCORES))[0].to("cpu", torch.uint8)


@torch.no_grad()
def confused_shares(block: BlockCall, compared: Compared) -> list[float]:
    """Of the pairs of clearly different queries, the share that is confused, for every score; among spread ones."""
    queries, rows = compared.sides(block, spread_tokens(block, PAIRED))
    different = (distances(queries, queries) > USUAL.query).triu(1)
    apart, count = distances(rows, rows)[different], max(int(different.sum()), 1)
    return [round(int((apart <= score).sum()) / count, 6) for score in SCORES]


def compared_heads(block: BlockCall) -> int:
    """How many heads `Compared` may name."""
    one = torch.tensor([block.prefix])
    return len(matched(block.queries(one), block.rows(one))[1])


def _chunks(block: BlockCall) -> Iterator[Tensor]:
    heads = sum(part.core.num_heads for part in block.parts)
    yield from grid_tokens(block).split(max(1, CHUNK // (block.keys * heads)))
