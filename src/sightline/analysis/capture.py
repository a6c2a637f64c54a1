"""What the attention blocks of a model are called with for one image, and where their tokens lie on the map.

Hooks on the cores record queries, keys and values. Windows, stripes and shifts are undone by sending the numbers of the
tokens through the same block.

Shape letters: H heads, D head dim, N tokens of a map, M keys of a window, Q chosen queries.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
from torch import Tensor, nn

from sightline.layers.attention import Attention
from sightline.layers.core import Core, Factors, Grid, Place
from sightline.layers.stripe_attention import StripeAttention
from sightline.util.errors import InputError

T = TypeVar("T")


@dataclass(frozen=True)
class CoreCall:
    """One core, called on all windows of one image.

    Args:
        core: the mechanism.
        q, k, v: queries (windows, N, H, D), keys and values (windows, M, H, D).
        place: where the tokens lie.
        positions: (windows, N), the number of each token on the map from 1 on, 0 for padding.
    """

    core: Core
    q: Tensor
    k: Tensor
    v: Tensor
    place: Place
    positions: Tensor

    @property
    def windows(self) -> int:
        return self.q.shape[0]

    @property
    def reduced(self) -> bool:
        """Whether the keys lie on a coarser map than the queries."""
        return self.k.shape[1] != self.positions.shape[1]

    def locate(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The window of each token, from 0 on, and its position there."""
        numbers = tokens.to(self.positions.device) + 1
        _, windows, inside = torch.where(self.positions == numbers[:, None, None])
        return windows, inside

    def to(self, dtype: torch.dtype) -> "CoreCall":
        """The same call in another precision; the core is copied if its own differs."""
        tensors = (*self.core.parameters(), *self.core.buffers())
        if any(t.is_floating_point() and t.dtype != dtype for t in tensors):
            return replace(self, core=copy.deepcopy(self.core).to(dtype)).to(dtype)
        local, bias = (None if t is None else t.to(dtype) for t in (self.place.local, self.place.bias))
        place = replace(self.place, context=self.place.context.to(dtype), local=local, bias=bias)
        return replace(self, q=self.q.to(dtype), k=self.k.to(dtype), v=self.v.to(dtype), place=place)

    def rows(self, window: int, queries: Tensor) -> Tensor:
        """The weights (heads, Q, M) that chosen queries of a window give to its keys, in float32 or wider.

        Local terms come on top.

        Args:
            queries: (Q,) positions among the N tokens of the window.
        """
        part, one = self.to(torch.promote_types(self.q.dtype, torch.float32)), slice(window, window + 1)
        return part.core.rows(part.q[one], part.k[one], queries.to(part.q.device), part.place.select(one))[0]

    def factors(self) -> Factors | None:
        """`Core.factors` of all windows in float64: (windows, heads, N, r) and (windows, heads, M, r)."""
        part = self.to(torch.float64)
        return part.core.factors(part.q, part.k, part.place)


@dataclass(frozen=True)
class BlockCall:
    """An attention block called with one image.

    Args:
        name: of the attention module.
        mechanism: as `sightline list --attention` writes it.
        grid: (height, width) of the queries.
        prefix: leading tokens without a position on the grid.
        key_grid: of the keys, coarser if the block reduces them.
        parts: its cores; more than one if directions of stripes share the heads.
    """

    name: str
    mechanism: str
    grid: Grid
    prefix: int
    key_grid: Grid
    parts: tuple[CoreCall, ...]

    @property
    def tokens(self) -> int:
        return self.prefix + self.grid[0] * self.grid[1]

    @property
    def keys(self) -> int:
        return self.prefix + self.key_grid[0] * self.key_grid[1]

    @torch.no_grad()
    def rows(self, tokens: Sequence[int] | Tensor) -> Tensor:
        """The weights (H, Q, keys) of chosen tokens over the whole map, zero outside their windows; O(Q N).

        The weights are those of the global term: the 3x3 residual of InLine and the convolution of SOFT come on top.
        A mechanism may have other heads than the projection, see `Core.rows`.
        """
        chosen = torch.as_tensor(tokens)
        return torch.cat([self._rows(part, chosen) for part in self.parts])

    @torch.no_grad()
    def queries(self, tokens: Sequence[int] | Tensor) -> Tensor:
        """The queries (H, Q, D) of chosen tokens, as they enter the mechanism."""
        found = []
        for part in self.parts:
            windows, inside = part.locate(torch.as_tensor(tokens))
            found.append(part.q[windows, inside].transpose(0, 1).float())
        return torch.cat(found)

    def _rows(self, part: CoreCall, tokens: Tensor) -> Tensor:
        windows, inside = part.locate(tokens)
        pieces, order = [], []
        for window in windows.unique().tolist():
            which = torch.where(windows == window)[0]
            rows = part.rows(window, inside[which]).float()  # H q M
            whole = rows.new_zeros(*rows.shape[:2], self.keys + 1)  # the first column takes the padding
            index = self._key_positions(part, window).expand_as(rows)
            pieces.append(whole.scatter_add_(2, index, rows)[:, :, 1:])
            order.append(which)
        return torch.cat(pieces, 1)[:, torch.cat(order).argsort()]

    def _key_positions(self, part: CoreCall, window: int) -> Tensor:
        """The number of every key of a window from 1 on, 0 for padding."""
        if part.reduced:
            return torch.arange(1, self.keys + 1, device=part.positions.device)
        return part.positions[window]

    def visible(self, tokens: Sequence[int] | Tensor) -> Tensor:
        """Which keys chosen tokens may attend to at all, (parts, Q, keys): those of their windows and regions."""
        found = []
        for part in self.parts:
            windows, inside = part.locate(torch.as_tensor(tokens))
            visible = torch.zeros(len(windows), self.keys + 1, dtype=torch.bool, device=windows.device)
            bias = part.place.bias
            for row, (window, query) in enumerate(zip(windows.tolist(), inside.tolist(), strict=True)):
                keys = self._key_positions(part, window)
                if bias is not None and bias.ndim == 4:  # regions of a shifted window are kept apart by -inf
                    keys = keys[torch.isfinite(bias[window, 0, query])]
                visible[row, keys] = True
            found.append(visible[:, 1:])
        return torch.stack(found)


@dataclass
class CallRecord:
    """What an attention module and its cores were called with."""

    x: Tensor = field(default_factory=lambda: torch.empty(0))
    grid: Grid = (0, 0)
    prefix: int = 0
    cores: list[tuple[Core, Tensor, Tensor, Tensor, Place]] = field(default_factory=list)


def call_arguments(
    x: Tensor, grid: Grid, prefix: int = 0, key_mask: Tensor | None = None, context: Tensor | None = None
) -> tuple[Tensor, Grid, int]:
    """Tokens, grid and prefix among the arguments of an attention module."""
    return x, grid, prefix


def attention_blocks(model: nn.Module) -> list[str]:
    """The names of the attention modules of a model, in the order in which they run."""
    return [name for name, module in model.named_modules() if isinstance(module, Attention | StripeAttention)]


@torch.no_grad()
def capture(model: nn.Module, image: Tensor, blocks: Sequence[str] | None = None) -> list[BlockCall]:
    """Run a model on one image (channels, height, width) and record what its blocks are called with, all by default.

    Raises:
        InputError: the model has no such block.
    """
    names = attention_blocks(model) if blocks is None else list(blocks)
    modules = dict(model.named_modules())
    for name in names:
        if not isinstance(modules.get(name), Attention | StripeAttention):
            raise InputError(f"no attention block {name!r}; there are {', '.join(attention_blocks(model)) or 'none'}")
    with ExitStack() as stack:
        records = {name: stack.enter_context(recorded(modules[name])) for name in names}
        model(image.unsqueeze(0))
    return [_block(name, modules[name], records[name]) for name in names]


@contextmanager
def recorded(module: nn.Module) -> Iterator[CallRecord]:
    """Record what an attention module and its cores are called with."""
    record = CallRecord()

    def record_module(_: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        record.x, record.grid, record.prefix = call_arguments(*args, **kwargs)  # type: ignore[arg-type]
        record.cores.clear()

    def record_core(core: Core, args: tuple[Tensor, Tensor, Tensor, Place]) -> None:
        record.cores.append((core, *args))

    cores = [part for part in module.modules() if isinstance(part, Core)]
    handles = [module.register_forward_pre_hook(record_module, with_kwargs=True)]
    handles += [core.register_forward_pre_hook(record_core) for core in cores]
    try:
        yield record
    finally:
        for handle in handles:
            handle.remove()


def spread(items: Sequence[T], limit: int) -> list[T]:
    """At most `limit` of the items, evenly spread from the first on."""
    count = min(limit, len(items))
    return [items[i * len(items) // count] for i in range(count)]


def _block(name: str, module: nn.Module, record: CallRecord) -> BlockCall:
    grid, prefix = record.grid, record.prefix
    positions = token_positions(module, record.x, grid, prefix)
    parts = tuple(CoreCall(*call, where) for call, where in zip(record.cores, positions, strict=True))
    return BlockCall(name, str(module.mechanism), grid, prefix, parts[0].place.key_grid or grid, parts)


def token_positions(module: nn.Module, x: Tensor, grid: Grid, prefix: int) -> list[Tensor]:
    """For every core, (windows, N): the number of each token of the map from 1 on, 0 for padding."""
    if type(module) is Attention:  # one window, in the order of the map
        return [torch.arange(1, x.shape[1] + 1, device=x.device)[None]]
    numbers = torch.arange(1.0, x.shape[1] + 1, device=x.device)[None, :, None].expand(1, -1, x.shape[2])
    with recorded(module) as record, torch.no_grad():
        module(numbers.contiguous(), grid, prefix, context=None)
    return [place.context[..., 0].round().long() for *_, place in record.cores]
