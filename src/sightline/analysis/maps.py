"""Attention maps: the weights of one chosen query over all keys, by block or rolled up; O(N) for every mechanism.

Linear attention never forms its N x N matrix, so its maps cannot be read off. One row of it can be computed from the
queries and keys of a block, which `capture` records.

Shape letter: H heads.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor, nn

from sightline.analysis.capture import BlockCall, attention_blocks, capture, with_rows
from sightline.data.images import load_image, resize_transform
from sightline.layers.core import Factors, Grid
from sightline.util.errors import InputError

Query = tuple[float, float] | None  # (down, across) as fractions of the image; None for the class token
Picture = Tensor | Image.Image | str | PathLike[str]
CHUNK = 1 << 24  # weights in memory at a time


class Patch(NamedTuple):
    """A patch by its position on the finest map of a model, counted from 0."""

    row: int
    column: int


@dataclass(frozen=True)
class AttentionMap:
    """The weights of one query in one block.

    Args:
        block: name of the attention module.
        mechanism: as `sightline list --attention` writes it.
        weights: (H, h, w), signed if the mechanism's are; zero outside the query's window. The grid is that of the
            keys, which spatial reduction makes coarser than the queries'.
        prefix: (H, p), the weights of class tokens.
        position: (row, column) of the query on the grid of the queries; None for the class token.
        grid: (height, width) of the queries in this block.
    """

    block: str
    mechanism: str
    weights: Tensor
    prefix: Tensor
    position: tuple[int, int] | None
    grid: Grid


@torch.no_grad()
def attention_maps(
    model: nn.Module,
    image: Picture,
    query: Query | Patch = (0.5, 0.5),
    blocks: Sequence[str] | None = None,
) -> list[AttentionMap]:
    """The attention of one query of one image, block by block.

    Args:
        model: a model of sightline, in evaluation mode.
        image: a normalized tensor (channels, height, width), or a picture (PIL image or file), which is resized,
            cropped and normalized as the model expects.
        query: a position in the image, from (0, 0) at the top left to (1, 1) at the bottom right; a `Patch` of the
            finest map; or None for the class token, which gives maps of the blocks that have one.
        blocks: names of attention modules, as `attention_blocks(model)` lists them; by default all whose mechanism has
            a matrix of weights.

    Raises:
        InputError: the model has no such block, the query lies outside the image, or there is no matrix of weights.

    Example:
        >>> model = timm.create_model("inline_deit_tiny").eval()
        >>> maps = attention_maps(model, torch.randn(3, 224, 224), query=(0.5, 0.25))
        >>> last = maps[-1]
        >>> last.block, last.grid, last.weights.mean(0).shape
        ('blocks.11.attn', (14, 14), torch.Size([14, 14]))
    """
    if not attention_blocks(model):
        raise InputError(f"model: {type(model).__name__} has no attention blocks of sightline")
    x = to_input(model, image)
    where = in_shares(query, model, x)
    if where is not None and not all(0 <= share <= 1 for share in where):
        raise InputError(f"query={query}: give fractions of height and width from 0 to 1")
    return maps_of(with_rows(capture(model, x)) if blocks is None else capture(model, x, blocks), where)


def to_input(model: nn.Module, image: Picture) -> Tensor:
    """What a model takes: a tensor (channels, height, width) on its device."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    if isinstance(image, Tensor):
        return image.to(device)
    from timm.data import resolve_model_data_config

    config = resolve_model_data_config(model)
    picture = image if isinstance(image, Image.Image) else load_image(Path(image), channels=config["input_size"][0])
    tensor: Tensor = resize_transform(**config)(picture)
    return tensor.to(device)


def block_grids(model: nn.Module, image: Tensor) -> dict[str, Grid]:
    """The grid of tokens in every attention block for an image (channels, height, width)."""
    return {block.name: block.grid for block in capture(model, image)}


def parse_query(text: str | None) -> Query | Patch:
    """`3,7` -> a patch; `0.5,0.25` -> fractions of height and width; `class` -> None; the center by default.

    Raises:
        InputError: none of these.
    """
    words = "0.5,0.5" if text is None else text.strip().lower()
    if words == "class":
        return None
    try:
        numbers = tuple(float(word) if "." in words else int(word) for word in words.split(","))
    except ValueError:
        numbers = ()
    if len(numbers) == 2 and min(numbers) >= 0:
        down, across = numbers
        if isinstance(down, int) and isinstance(across, int):
            return Patch(down, across)
        if max(numbers) <= 1:
            return float(down), float(across)
    raise InputError(
        f"query: expected a patch as row,column, e.g. 3,7; fractions of the image from 0.0,0.0 to 1.0,1.0; or "
        f"class; got {text!r}"
    )


def in_shares(query: Query | Patch, model: nn.Module, image: Tensor) -> Query:
    """A query as fractions of the image (channels, height, width): of a patch, its middle.

    Raises:
        InputError: the model makes no such patch of the image.
    """
    if isinstance(query, str):
        raise InputError(f"query: expected a position, a Patch, or None for the class token; got {query!r}")
    if not isinstance(query, Patch):
        return query
    height, width = max(block_grids(model, image).values(), key=lambda grid: grid[0] * grid[1])
    if query.row >= height or query.column >= width:
        raise InputError(
            f"query: no patch {query.row},{query.column}; there are {height} x {width}, from 0,0 to "
            f"{height - 1},{width - 1}; fractions of the image have a decimal point, e.g. 0.5,0.25"
        )
    return (query.row + 0.5) / height, (query.column + 0.5) / width


def maps_of(blocks: Sequence[BlockCall], query: Query) -> list[AttentionMap]:
    """The maps of one query; of the class token, in the blocks that have one."""
    return [map_of(block, query) for block in blocks if query is not None or block.prefix]


def map_of(block: BlockCall, query: Query) -> AttentionMap:
    """The weights of one query in a block, which has a class token if that is the query."""
    position = None if query is None else position_of(query, block.grid)
    row = block.rows([token_of(block, query)])[:, 0].cpu()
    weights = row[:, block.prefix :].unflatten(1, block.key_grid)
    return AttentionMap(block.name, block.mechanism, weights, row[:, : block.prefix], position, block.grid)


def position_of(query: tuple[float, float], grid: Grid) -> tuple[int, int]:
    """The (row, column) of a grid that fractions of height and width lie in."""
    return min(int(query[0] * grid[0]), grid[0] - 1), min(int(query[1] * grid[1]), grid[1] - 1)


def token_of(block: BlockCall, query: Query) -> int:
    """The number of a query among the tokens of a block."""
    if query is None:
        return 0
    down, across = position_of(query, block.grid)
    return block.prefix + down * block.grid[1] + across


def roll_up(blocks: Sequence[BlockCall], query: Query) -> AttentionMap:
    """Where the information of one token comes from, over the last blocks that share one map (Abnar and Zuidema, 2020).

    Each block passes on half of a token as it is and half through its attention, mean over heads. The product of all
    blocks is followed for one query only, as a vector: O(N) memory. Signed weights stay signed.

    Raises:
        InputError: the keys of those blocks lie on another grid than the queries, or there is no class token.
    """
    chosen = last_run(blocks)
    last = chosen[-1]
    if query is None and not last.prefix:
        raise InputError(f"{last.name} has no class token; give a position such as 0.5,0.5")
    share = rolled_row(chosen, token_of(last, query))
    name = f"{chosen[0].name} to {last.name}" if len(chosen) > 1 else last.name
    position = None if query is None else position_of(query, last.grid)
    weights = share[None, last.prefix :].unflatten(1, last.grid)
    return AttentionMap(name, "rolled up", weights, share[None, : last.prefix], position, last.grid)


@torch.no_grad()
def rolled_row(run: Sequence[BlockCall], token: int) -> Tensor:
    """`roll_up` of one token (N,) over blocks that share one map, in O(N) memory.

    Raises:
        InputError: their keys lie on another grid than the queries.
    """
    if any(block.key_grid != block.grid for block in run):
        raise InputError(
            f"{run[-1].name} has its keys on a reduced map, which cannot be rolled up; choose another view"
        )
    share = torch.zeros(run[-1].tokens)
    share[token] = 1
    for block in reversed(run):
        share = 0.5 * share + 0.5 * _through(block, share)
    return share


@torch.no_grad()
def rolled_rows(run: Sequence[BlockCall]) -> Tensor:
    """`rolled_row` of all tokens (N, N), if the keys lie on the grid of the queries: the product of all matrices."""
    shares = torch.eye(run[-1].tokens)
    for block in reversed(run):
        shares = 0.5 * shares + 0.5 * shares @ block.rows(range(block.tokens)).mean(0).cpu()
    return shares


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
    """The product of share (N,) and the mean attention matrix of a block: by its factors, else by rows with a share."""
    factors = [part.factors() for part in block.parts]
    if all(pair is not None for pair in factors):
        return _through_factors(block, [pair for pair in factors if pair is not None], share)
    heads = sum(part.core.num_heads for part in block.parts)
    passed = torch.zeros(block.keys)
    for tokens in torch.where(share != 0)[0].split(max(1, CHUNK // (block.keys * heads))):
        passed += share[tokens] @ block.rows(tokens).mean(0).cpu()
    return passed


def _through_factors(block: BlockCall, factors: Sequence[Factors], share: Tensor) -> Tensor:
    """The same in O(N): the matrix is never formed."""
    passed, heads = torch.zeros(block.keys + 1), 0  # the first entry takes the padding
    for part, (left, right) in zip(block.parts, factors, strict=True):
        given = torch.cat([share.new_zeros(1), share]).to(left)[part.positions]  # windows N
        found = torch.einsum("wn,whnr,whmr->wm", given, left, right).float().cpu()
        passed.index_add_(0, part.key_positions.flatten().cpu(), found.flatten())
        heads += left.shape[1]
    return passed[1:] / heads
