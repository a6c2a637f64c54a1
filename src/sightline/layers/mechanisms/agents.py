"""Agents: a few mean queries that gather from all keys by softmax, and that every query then attends to by softmax.

Agent Attention: On the Integration of Softmax and Linear Attention (ECCV 2024). With the mean queries a of the parts of
a map,
    out = softmax(q a^T) softmax(a k^T) v,   scores divided by sqrt(d)
The weights are positive and rows sum to one, as in softmax; m agents cost N m d multiply-adds, and m does not depend
on N. InLine attention has the even mean of the values already, so these functions give the difference from it.

Shape letters: as in `layers.core`; m agents.
"""

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from sightline.layers.core import Factors, Place, softmax_rows
from sightline.layers.mechanisms.landmarks import map_means, segment_means
from sightline.ops import softmax_attention
from sightline.ops.feature_maps import hide


class Gathered(NamedTuple):
    """What agents (B, m, H, D) gather from all keys, less the even mean of the values.

    `there` (B, m) tells which of them exist, None for all. `first` (B, P, H, D) is what the first tokens gather
    themselves, by softmax.
    """

    agents: Tensor
    values: Tensor
    there: Tensor | None
    first: Tensor


def gather(q: Tensor, k: Tensor, v: Tensor, place: Place, number: int, sequence: bool, first: int = 0) -> Gathered:
    """Keys and values are read once: one softmax for the agents and for the first tokens."""
    agents, there = mean_queries(q, k, place, number, sequence)
    even = torch.zeros_like(agents[:, :1])  # a query for which softmax is even
    values = softmax_attention(torch.cat([agents, even, q[:, :first]], 1), k, v, key_mask=place.key_mask)
    count = agents.shape[1]
    return Gathered(agents, values[:, :count] - values[:, count : count + 1], there, values[:, count + 1 :])


def ask(q: Tensor, gathered: Gathered) -> Tensor:
    """What the agents give to the queries, less the even mean of the values, (B, N, H, D)."""
    return softmax_attention(q, gathered.agents, gathered.values, key_mask=gathered.there)


def agent_factors(q: Tensor, k: Tensor, place: Place, number: int, sequence: bool) -> Factors:
    """The weights of `ask`: (B, H, N, m) and (B, H, M, m)."""
    agents, there = mean_queries(q, k, place, number, sequence)
    counts = place.counts(k)[:, None, None, :].to(q.dtype)
    even = counts / counts.sum(-1, keepdim=True).clamp(min=1)
    return softmax_rows(q, agents, replace(place, key_mask=there)), (softmax_rows(agents, k, place) - even).mT


def mean_queries(q: Tensor, k: Tensor, place: Place, number: int, sequence: bool) -> tuple[Tensor, Tensor | None]:
    """The mean queries (B, m, H, D) of the parts of a map or a sequence, and which are there (B, m); None for all."""
    same = place.local is None and q.shape[1] == k.shape[1]
    counts = place.key_mask[:, place.prefix :] if same and place.key_mask is not None else None
    q = q[:, place.prefix :]
    if sequence:
        every = q.new_ones(q.shape[:2], dtype=torch.bool) if counts is None else counts
        means, there = segment_means(hide(q, ~every[:, :, None, None]).transpose(1, 2), every, number)
        return means.transpose(1, 2), there
    if counts is not None:
        q = hide(q, ~counts[:, :, None, None])
    return map_means(q, counts, place.grid, math.isqrt(number))
