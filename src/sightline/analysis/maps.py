"""Attention maps: the weights of one chosen query over all keys, O(N) for every mechanism.

Linear attention never forms its N x N matrix, so its maps cannot be read off. One row of it can be computed from the
queries and keys that a block sees, which `capture` notes.

    maps = attention_maps(model, image, query=(0.5, 0.5))
    maps[-1].weights.mean(0)  # (h, w), of the last block

Shape letter: H heads.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sightline.analysis.capture import BlockCall, Noted, attention_blocks, capture
from sightline.layers.core import Grid

__all__ = [
    "AttentionMap", "Patch", "Query", "attention_blocks", "attention_maps", "block_grids", "in_shares", "map_of",
    "place_of", "token_of",
]  # fmt: skip

Query = tuple[float, float] | None  # (down, across) as shares of the image; None for the class token


class Patch(NamedTuple):
    """A patch by its place on the finest map of a model, counted from 0."""

    row: int
    column: int


@dataclass(frozen=True)
class AttentionMap:
    """The weights of one query in one block.

    Args:
        block: name of the attention module.
        mechanism: as `sightline list --attention` writes it.
        weights: (H, h, w), signed where the mechanism's are; zero outside the query's window. The grid is that of the
            keys, which spatial reduction makes coarser than the queries'.
        prefix: (H, p), the weights of class tokens.
        place: (row, column) of the query on the grid of the queries; None for the class token.
        grid: that grid.
    """

    block: str
    mechanism: str
    weights: Tensor
    prefix: Tensor
    place: tuple[int, int] | None
    grid: Grid


@torch.no_grad()
def block_grids(model: nn.Module, image: Tensor) -> dict[str, Grid]:
    """The grid of tokens in every attention block for an image (channels, height, width)."""
    grids: dict[str, Grid] = {}

    def noting(name: str) -> Any:
        def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            grids[name] = Noted(args, kwargs).arguments()[1]

        return note

    modules = dict(model.named_modules())
    names = attention_blocks(model)
    handles = [modules[name].register_forward_pre_hook(noting(name), with_kwargs=True) for name in names]
    try:
        model(image.unsqueeze(0))
    finally:
        for handle in handles:
            handle.remove()
    return grids


def in_shares(query: Query | Patch, model: nn.Module, image: Tensor) -> Query:
    """A query as shares of the image (channels, height, width): of a patch, its middle.

    Raises:
        ValueError: the model makes no such patch of the image.
    """
    if not isinstance(query, Patch):
        return query
    height, width = max(block_grids(model, image).values(), key=lambda grid: grid[0] * grid[1])
    if query.row >= height or query.column >= width:
        raise ValueError(
            f"no patch {query.row},{query.column}: there are {height} x {width}, from 0,0 to {height - 1},{width - 1}; "
            f"shares of the image have a decimal point, as 0.5,0.25"
        )
    return (query.row + 0.5) / height, (query.column + 0.5) / width


@torch.no_grad()
def attention_maps(
    model: nn.Module, image: Tensor, query: Query = (0.5, 0.5), blocks: Sequence[str] | None = None
) -> list[AttentionMap]:
    """The attention of one query of one image in the given blocks, all by default.

    Args:
        model: a model of sightline, in evaluation mode.
        image: (channels, height, width), on the model's device.
        query: a place in the image, (0, 0) its top left corner and (1, 1) its bottom right one; None for the class
            token, and then only blocks that have one are given.

    Raises:
        ValueError: the model has no such block, or the query lies outside the image.
    """
    if query is not None and not all(0 <= share <= 1 for share in query):
        raise ValueError(f"query={query}: give shares of height and width, 0 to 1")
    found = [map_of(block, query) for block in capture(model, image, blocks)]
    return [item for item in found if item is not None]


def map_of(block: BlockCall, query: Query) -> AttentionMap | None:
    """The weights of one query in a block; None for the class token where there is none."""
    if query is None and not block.prefix:
        return None
    place = None if query is None else place_of(query, block.grid)
    row = block.rows([token_of(block, query)])[:, 0].cpu()
    weights = row[:, block.prefix :].unflatten(1, block.key_grid)
    return AttentionMap(block.name, block.mechanism, weights, row[:, : block.prefix], place, block.grid)


def place_of(query: tuple[float, float], grid: Grid) -> tuple[int, int]:
    """The (row, column) of a grid that shares of height and width lie in."""
    return min(int(query[0] * grid[0]), grid[0] - 1), min(int(query[1] * grid[1]), grid[1] - 1)


def token_of(block: BlockCall, query: Query) -> int:
    """The number of a query among the tokens of a block."""
    if query is None:
        return 0
    down, across = place_of(query, block.grid)
    return block.prefix + down * block.grid[1] + across
