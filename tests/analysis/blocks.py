"""Blocks made by hand: queries and keys of one's own in a core."""

import torch
from torch import Tensor

from sightline.analysis.capture import BlockCall, CoreCall
from sightline.layers.core import Core, Place
from sightline.layers.spec import Spec


def core_of(mechanism: str, dim: int, heads: int) -> Core:
    return Spec.parse(mechanism).build(dim, heads, 16).eval()


def block_of(mechanism: str, q: Tensor, k: Tensor, grid: tuple[int, int], prefix: int = 0) -> BlockCall:
    """A block whose core gets q and k (N, H, D) as they are."""
    tokens, heads, dim = q.shape
    core = core_of(mechanism, heads * dim, heads)
    place = Place(grid, torch.zeros(1, tokens, heads * dim, dtype=q.dtype), prefix)
    positions = torch.arange(1, tokens + 1)[None]
    part = CoreCall(core, q[None], k[None], torch.zeros_like(k)[None], place, positions)
    return BlockCall("block.attn", mechanism, grid, prefix, grid, (part,))
