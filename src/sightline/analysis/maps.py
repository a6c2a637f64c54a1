"""Attention maps: the weights of one chosen query over all keys, O(N) for every mechanism.

Linear attention never forms its N x N matrix, so its maps cannot be read off. One row of it can be computed from the
queries and keys that a block sees. Hooks on the cores of a model note those; windows, stripes and shifts are undone by
sending the numbers of the tokens through the same block.

    maps = attention_maps(model, image, query=(0.5, 0.5))
    maps[-1].weights.mean(0)  # (h, w), of the last block

Shape letters: H heads, D head dim, N tokens of a map, M keys of a window.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sightline.analysis.rows import row_of
from sightline.layers.attention import Attention
from sightline.layers.core import Core, Grid
from sightline.layers.stripe_attention import StripeAttention

Query = tuple[float, float] | None  # (down, across) as shares of the image; None for the class token


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


@dataclass
class _Call:
    """What an attention module and its cores were called with."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    cores: list[dict[str, Any]] = field(default_factory=list)


def attention_blocks(model: nn.Module) -> list[str]:
    """The names of the attention modules of a model, in the order in which they run."""
    return [name for name, module in model.named_modules() if isinstance(module, Attention | StripeAttention)]


@torch.no_grad()
def block_grids(model: nn.Module, image: Tensor) -> dict[str, Grid]:
    """The grid of tokens in every attention block for an image (channels, height, width)."""
    grids: dict[str, Grid] = {}

    def noting(name: str) -> Any:
        def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            grids[name] = _arguments(_Call(args, kwargs))[1]

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
    names = attention_blocks(model) if blocks is None else list(blocks)
    modules = dict(model.named_modules())
    for name in names:
        if not isinstance(modules.get(name), Attention | StripeAttention):
            raise ValueError(f"no attention block {name!r}; there are {', '.join(attention_blocks(model)) or 'none'}")
    if query is not None and not all(0 <= share <= 1 for share in query):
        raise ValueError(f"query={query}: give shares of height and width, 0 to 1")
    with ExitStack() as stack:
        calls = {name: stack.enter_context(_watched(modules[name])) for name in names}
        model(image.unsqueeze(0))
    return [found for name in names if (found := _map_of(name, modules[name], calls[name], query)) is not None]


@contextmanager
def _watched(module: nn.Module) -> Iterator[_Call]:
    """Note what the module and its cores are called with."""
    call = _Call()

    def note_module(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        call.args, call.kwargs = args, kwargs
        call.cores.clear()

    def note_core(core: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        q, k, v = args
        call.cores.append({"core": core, "q": q, "k": k, "v": v, **kwargs})

    cores = [part for part in module.modules() if isinstance(part, Core)]
    handles = [module.register_forward_pre_hook(note_module, with_kwargs=True)]
    handles += [core.register_forward_pre_hook(note_core, with_kwargs=True) for core in cores]
    # A projection with a hook is called, where the short cut from the tokens would pass by the core.
    handles.append(module.qkv.register_forward_hook(lambda *_: None))  # type: ignore[union-attr]
    try:
        yield call
    finally:
        for handle in handles:
            handle.remove()


def _map_of(name: str, module: Any, call: _Call, query: Query) -> AttentionMap | None:
    x, grid, prefix = _arguments(call)
    if query is None and not prefix:
        return None
    place = None if query is None else (_clip(query[0] * grid[0], grid[0]), _clip(query[1] * grid[1], grid[1]))
    token = 0 if place is None else prefix + place[0] * grid[1] + place[1]
    rows, keys = [], grid
    for seen, positions in zip(call.cores, _positions(module, call), strict=True):
        window, inside = (int(i[0]) for i in torch.where(positions == token + 1))
        row = row_of(seen["core"], seen, window, inside)  # H M
        if row.shape[1] != positions.shape[1]:  # keys on a reduced map
            rows.append(row)
            keys = _reduced(grid, module.sr.stride)
            continue
        whole = row.new_zeros(row.shape[0], x.shape[1] + 1)  # the first place takes what padding gets
        rows.append(whole.index_add_(1, positions[window], row)[:, 1:])
    weights = torch.cat(rows).float().cpu()
    return AttentionMap(
        name, str(module.mechanism), weights[:, prefix:].unflatten(1, keys), weights[:, :prefix], place, grid
    )


def _arguments(call: _Call) -> tuple[Tensor, Grid, int]:
    """Tokens, grid and prefix of a noted call."""
    names = ("x", "grid", "prefix", "key_mask", "context")
    given = {**dict(zip(names, call.args, strict=False)), **call.kwargs}
    return given["x"], given["grid"], given.get("prefix", 0)


def _positions(module: nn.Module, call: _Call) -> list[Tensor]:
    """For every core, (windows, M): the number of the token at each place from 1 on, 0 for padding."""
    x, grid, prefix = _arguments(call)
    numbers = torch.arange(1.0, x.shape[1] + 1, device=x.device)[None, :, None].expand(1, -1, x.shape[2])
    with _watched(module) as traced:
        module(numbers.contiguous(), grid, prefix, context=None)
    return [seen["context"][..., 0].round().long() for seen in traced.cores]


def _reduced(grid: Grid, stride: Sequence[int]) -> Grid:
    return -(-grid[0] // stride[0]), -(-grid[1] // stride[1])


def _clip(place: float, count: int) -> int:
    return min(int(place), count - 1)
