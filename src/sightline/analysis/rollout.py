"""Attention rolled up over layers: where the information of one token comes from (Abnar and Zuidema, 2020).

Each block passes on half of a token as it is and half through its attention, mean over heads. The product of all blocks
is followed for one query only, as a vector: O(N) memory, rows of each block in chunks. Signed weights stay signed.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from sightline.analysis.capture import BlockCall
from sightline.analysis.maps import AttentionMap, Query, position_of, token_of
from sightline.util.errors import InputError

CHUNK = 1 << 24  # weights in memory at a time


@torch.no_grad()
def roll_up(blocks: Sequence[BlockCall], query: Query) -> AttentionMap:
    """The rolled-up weights of a query over the last blocks that share one map of more than one position.

    Raises:
        InputError: the keys of those blocks lie on another grid than the queries, or there is no class token.
    """
    chosen = last_run(blocks)
    last = chosen[-1]
    if query is None and not last.prefix:
        raise InputError(f"{last.name} has no class token; give a position such as 0.5,0.5")
    if any(block.key_grid != block.grid for block in chosen):
        raise InputError(f"{last.name} has its keys on a reduced map, which cannot be rolled up; choose another view")
    share = torch.zeros(last.tokens)
    share[token_of(last, query)] = 1
    for block in reversed(chosen):
        share = 0.5 * share + 0.5 * _through(block, share)
    name = f"{chosen[0].name} to {last.name}" if len(chosen) > 1 else last.name
    position = None if query is None else position_of(query, last.grid)
    weights = share[None, last.prefix :].unflatten(1, last.grid)
    return AttentionMap(name, "rolled up", weights, share[None, : last.prefix], position, last.grid)


def last_run(blocks: Sequence[BlockCall]) -> list[BlockCall]:
    """The last blocks in a row that have the same grid and prefix, of those with more than one position."""
    maps = [block for block in blocks if block.grid[0] * block.grid[1] > 1] or list(blocks)
    run = [maps[-1]]
    for block in reversed(maps[:-1]):
        if (block.grid, block.prefix) != (run[0].grid, run[0].prefix):
            break
        run.insert(0, block)
    return run


def _through(block: BlockCall, share: Tensor) -> Tensor:
    """The product of share (N,) and the mean attention matrix of a block, from the rows with a share."""
    heads = sum(part.core.num_heads for part in block.parts)
    passed = torch.zeros(block.keys)
    for tokens in torch.where(share != 0)[0].split(max(1, CHUNK // (block.keys * heads))):
        passed += share[tokens] @ block.rows(tokens).mean(0).cpu()
    return passed
