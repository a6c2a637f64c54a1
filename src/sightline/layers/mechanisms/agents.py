"""Agents: a few mean queries that gather from all keys by softmax, and that every query then attends to by softmax.

Agent Attention: On the Integration of Softmax and Linear Attention (ECCV 2024). With the mean queries a of the parts of
a map,
    out = softmax(q a^T) softmax(a k^T) v,   scores divided by sqrt(d)
The weights are positive and rows sum to one, as in softmax; m agents cost N m d multiply-adds, and m does not depend
on N. With windows, one softmax is over the keys of a query's own window, those of the prefix and the agents: what is
near comes as in softmax attention, what is far through the agents. InLine attention has the even mean of the values
already, so these functions give the difference from it.

Shape letters: as in `layers.core`; m agents.
"""

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from sightline.layers.core import Factors, Grid, Place, products, softmax_rows
from sightline.layers.mechanisms.landmarks import map_means, segment_means
from sightline.layers.windows import Windows
from sightline.ops import softmax_attention
from sightline.ops.checks import is_symbolic
from sightline.ops.feature_maps import hide


class Gathered(NamedTuple):
    """What agents (B, m, H, D) gather from all keys, less the even mean (B, 1, H, D) of the values.

    `there` (B, m) tells which of them exist, None for all. `first` (B, P, H, D) is what the first tokens gather
    themselves, by softmax.
    """

    agents: Tensor
    values: Tensor
    even: Tensor
    there: Tensor | None
    first: Tensor


def gather(q: Tensor, k: Tensor, v: Tensor, place: Place, number: int, sequence: bool, first: int = 0) -> Gathered:
    """Keys and values are read once: one softmax for the agents and for the first tokens."""
    agents, there = mean_queries(q, k, place, number, sequence)
    even = torch.zeros_like(agents[:, :1])  # a query for which softmax is even
    values = softmax_attention(torch.cat([agents, even, q[:, :first]], 1), k, v, key_mask=place.key_mask)
    count = agents.shape[1]
    mean = values[:, count : count + 1]
    return Gathered(agents, values[:, :count] - mean, mean, there, values[:, count + 1 :])


def ask(q: Tensor, gathered: Gathered, keys: Tensor | None = None) -> Tensor:
    """What the agents give to the queries, less the even mean of the values, (B, N, H, D).

    `keys` (B, m, H, D) are those of the agents; by default they are the agents.
    """
    keys = gathered.agents if keys is None else keys
    return softmax_attention(q, keys, gathered.values, key_mask=gathered.there)


def ask_near(q: Tensor, k: Tensor, v: Tensor, place: Place, gathered: Gathered, keys: Tensor, size: Grid) -> Tensor:
    """What one softmax over near keys and the agents gives, less the even mean of the values, (B, N, H, D).

    Args:
        keys: (B, m, H, D), those of the agents in this softmax.
        size: of the windows. Tokens of the prefix have no window; theirs is the softmax over prefix and agents. Keys of
            another grid are not near.
    """
    if not _same_tokens(q, k, place):
        return ask(q, gathered, keys)
    count, v, mask = place.prefix, v - gathered.even, None
    far_k, far_v = torch.cat([k[:, :count], keys], 1), torch.cat([v[:, :count], gathered.values], 1)
    if place.key_mask is not None or gathered.there is not None:
        there = keys.new_ones(keys.shape[:2], dtype=torch.bool) if gathered.there is None else gathered.there
        mask = torch.cat([place.counts(k)[:, :count], there], 1)
    out = []
    if count:
        out.append(softmax_attention(q[:, :count], far_k, far_v, key_mask=mask))
    if is_symbolic(*place.grid) or 0 not in place.grid:
        out.append(_in_windows(q, k, v, place, far_k, far_v, mask, size))
    return torch.cat(out, 1) if out else torch.zeros_like(q)


def _in_windows(
    q: Tensor, k: Tensor, v: Tensor, place: Place, far_k: Tensor, far_v: Tensor, far_mask: Tensor | None, size: Grid
) -> Tensor:
    """Softmax of the tokens on the map over their windows and over far keys (B, M, H, D), (B, h * w, H, D)."""
    if not is_symbolic(*place.grid):  # a window that is larger than the map is the map
        size = (min(size[0], place.grid[0]), min(size[1], place.grid[1]))
    windows, count, (heads, dim) = Windows(place.grid, size), place.prefix, q.shape[2:]
    number = windows.counts[0] * windows.counts[1]

    def spread(x: Tensor) -> Tensor:
        """(B, ...) -> (B * windows, ...)"""
        return x.unsqueeze(1).expand(-1, number, *x.shape[1:]).flatten(0, 1)

    q, near_k, near_v = (windows.cut(x[:, count:].flatten(2)).unflatten(2, (heads, dim)) for x in (q, k, v))
    mask = None
    if far_mask is not None or windows.padded:
        every = far_k.new_ones(far_k.shape[:2], dtype=torch.bool) if far_mask is None else far_mask
        near = windows.cut(place.counts(k)[:, count:, None].to(v.dtype)).squeeze(2) > 0
        mask = torch.cat([near, spread(every)], 1)
    keys, values = torch.cat([near_k, spread(far_k)], 1), torch.cat([near_v, spread(far_v)], 1)
    return windows.join(softmax_attention(q, keys, values, key_mask=mask).flatten(2)).unflatten(2, (heads, dim))


def near_rows(
    q: Tensor, k: Tensor, queries: Tensor, place: Place, agents: Tensor, there: Tensor | None, keys: Tensor, size: Grid
) -> Tensor:  # fmt: skip
    """The weights of `ask_near` for some queries, (B, H, Q, M)."""
    near = torch.zeros_like(queries, dtype=torch.bool)[:, None]
    if _same_tokens(q, k, place):
        near = _near(place, queries, size)
    asking = q[:, queries]
    scale = q.shape[3] ** -0.5
    counts = place.counts(k)
    scores = products(asking, hide(k, place.hidden(k))) * scale
    scores = scores.masked_fill(~(near & counts[:, None, None, :]), -torch.inf)
    far = products(asking, keys) * scale
    if there is not None:
        far = far.masked_fill(~there[:, None, None, :], -torch.inf)
    weights = torch.cat([scores, far], -1).softmax(-1).nan_to_num()
    close, far = weights.split([k.shape[1], keys.shape[1]], -1)
    even = counts[:, None, None, :].to(q.dtype)
    total = weights.sum(-1, keepdim=True)
    return close + far @ softmax_rows(agents, k, place) - total * even / even.sum(-1, keepdim=True).clamp(min=1)


def _near(place: Place, queries: Tensor, size: Grid) -> Tensor:
    """(Q, N): the tokens in the windows of the queries, and those of the prefix."""
    height, width = place.grid
    cell = torch.arange(height * width, device=queries.device)
    window = cell // width // size[0] * width + cell % width // size[1]  # a number for each window
    own = torch.cat([window.new_full((place.prefix,), -1), window])
    return (own[queries][:, None] == own) | (own == -1)


def _same_tokens(q: Tensor, k: Tensor, place: Place) -> bool:
    """Whether queries and keys are of the same tokens; in the graph of torch.jit.trace sizes are not compared."""
    return place.local is None and (torch.jit.is_tracing() or q.shape[1] == k.shape[1])


def agent_factors(q: Tensor, k: Tensor, place: Place, number: int, sequence: bool) -> Factors:
    """The weights of `ask`: (B, H, N, m) and (B, H, M, m)."""
    agents, there = mean_queries(q, k, place, number, sequence)
    counts = place.counts(k)[:, None, None, :].to(q.dtype)
    even = counts / counts.sum(-1, keepdim=True).clamp(min=1)
    return softmax_rows(q, agents, replace(place, key_mask=there)), (softmax_rows(agents, k, place) - even).mT


def mean_queries(q: Tensor, k: Tensor, place: Place, number: int, sequence: bool) -> tuple[Tensor, Tensor | None]:
    """The mean queries (B, m, H, D) of the parts of a map or a sequence, and which are there (B, m); None for all."""
    same = _same_tokens(q, k, place)
    counts = place.key_mask[:, place.prefix :] if same and place.key_mask is not None else None
    q = q[:, place.prefix :]
    if sequence:
        every = q.new_ones(q.shape[:2], dtype=torch.bool) if counts is None else counts
        means, there = segment_means(hide(q, ~every[:, :, None, None]).transpose(1, 2), every, number)
        return means.transpose(1, 2), there
    if counts is not None:
        q = hide(q, ~counts[:, :, None, None])
    return map_means(q, counts, place.grid, math.isqrt(number))
