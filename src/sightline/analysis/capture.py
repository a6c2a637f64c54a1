"""What the attention blocks of a model are called with for one image, and where their tokens lie on the map.

Hooks on the cores record queries, keys and values. Windows, stripes and shifts are undone by sending the numbers of the
tokens through the same block.

Shape letters: H heads, D head dim, N tokens of a map, M keys of a window, Q chosen queries.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from inspect import signature
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
    def key_positions(self) -> Tensor:
        """(windows, M), the number of each key on its map, which may be coarser, from 1 on; 0 for padding."""
        if self.k.shape[1] == self.positions.shape[1]:
            return self.positions
        return torch.arange(1, self.k.shape[1] + 1, device=self.positions.device).expand(self.windows, -1)

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
    def has_rows(self) -> bool:
        """Whether its mechanism has a matrix of weights."""
        return all(part.core.has_rows for part in self.parts)

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
            index = part.key_positions[window].expand_as(rows)
            pieces.append(whole.scatter_add_(2, index, rows)[:, :, 1:])
            order.append(which)
        return torch.cat(pieces, 1)[:, torch.cat(order).argsort()]

    def visible(self, tokens: Sequence[int] | Tensor) -> Tensor:
        """Which keys chosen tokens may attend to at all, (parts, Q, keys): those of their windows and regions."""
        found = []
        for part in self.parts:
            windows, inside = part.locate(torch.as_tensor(tokens))
            keys, bias = part.key_positions[windows], part.place.bias
            region = torch.ones_like(keys, dtype=torch.bool)
            if bias is not None and bias.ndim == 4:  # regions of a shifted window are kept apart by -inf
                region = torch.isfinite(bias[windows, 0, inside])
            visible = region.new_zeros(len(windows), self.keys + 1)
            found.append(visible.scatter_(1, keys, region)[:, 1:])
        return torch.stack(found)


@dataclass
class Tokens:
    """The tokens of an attention module in its last call.

    Args:
        grid, prefix: as it was called.
        positions: for every core (windows, N), the number of each token on the map from 1 on, 0 for padding.
    """

    grid: Grid = (0, 0)
    prefix: int = 0
    positions: dict[Core, Tensor] = field(default_factory=dict)


Arguments = tuple[Tensor, Tensor, Tensor, Place]  # of a core: q, k, v and where the tokens lie
AfterCore = Callable[[Core, Arguments, Tensor, Tokens], Tensor | None]


@contextmanager
def watched(module: nn.Module, after: AfterCore) -> Iterator[Tokens]:
    """Call `after` with the arguments and the output of every core of an attention module, whenever it runs.

    What it returns replaces the output, unless it is None. Compiled models run in eager mode meanwhile, since their
    graphs may have no calls of cores.
    """
    tokens, tracing = Tokens(), False

    def before_module(_: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        nonlocal tracing
        if tracing:
            return
        call = signature(module.forward).bind(*args, **kwargs).arguments
        x, tokens.grid, tokens.prefix = call["x"], call["grid"], call.get("prefix", 0)
        numbers = torch.arange(1.0, x.shape[1] + 1, device=x.device)[None]
        if type(module) is Attention:  # one window, in the order of the map
            tokens.positions = {module.core: numbers.long()}
            return
        tracing = True
        try:
            with torch.no_grad():
                module(numbers[..., None].repeat(1, 1, x.shape[2]), tokens.grid, tokens.prefix)
        finally:
            tracing = False

    def after_core(core: Core, args: Arguments, out: Tensor) -> Tensor | None:
        if tracing:  # the context of a core is made of the tokens
            tokens.positions[core] = args[3].context[..., 0].round().long()
            return None
        return after(core, args, out, tokens)

    handles = [module.register_forward_pre_hook(before_module, with_kwargs=True)]
    handles += [core.register_forward_hook(after_core) for core in module.modules() if isinstance(core, Core)]
    try:
        with torch.compiler.set_stance("force_eager"):
            yield tokens
    finally:
        for handle in handles:
            handle.remove()


def attention_blocks(model: nn.Module) -> list[str]:
    """The names of the attention modules of a model, in the order in which they run."""
    return [name for name, module in model.named_modules() if isinstance(module, Attention | StripeAttention)]


@torch.no_grad()
def capture(model: nn.Module, image: Tensor, blocks: Sequence[str] | None = None) -> list[BlockCall]:
    """Run a model on one image (channels, height, width) and record what its blocks are called with, all by default.

    Raises:
        InputError: the model has no such block.
    """
    known, modules = attention_blocks(model), dict(model.named_modules())
    names = known if blocks is None else list(blocks)
    for name in names:
        if name not in known:
            raise InputError(f"no attention block {name!r}; there are {', '.join(known) or 'none'}")
    calls: dict[Core, CoreCall] = {}

    def record(core: Core, args: Arguments, _: Tensor, tokens: Tokens) -> None:
        calls[core] = CoreCall(core, *args, tokens.positions[core])

    with ExitStack() as stack:
        found = {name: stack.enter_context(watched(modules[name], record)) for name in names}
        model(image.unsqueeze(0))
    captured = []
    for name, tokens in found.items():
        parts = tuple(calls[core] for core in tokens.positions)
        key_grid, mechanism = parts[0].place.key_grid or tokens.grid, str(modules[name].mechanism)
        captured.append(BlockCall(name, mechanism, tokens.grid, tokens.prefix, key_grid, parts))
    return captured


def with_rows(blocks: Sequence[BlockCall]) -> list[BlockCall]:
    """The blocks whose mechanism has a matrix of weights.

    Raises:
        InputError: none of them has.
    """
    found = [block for block in blocks if block.has_rows]
    if blocks and not found:
        raise InputError(f"{blocks[0].mechanism} has no attention matrix to show; choose another mechanism")
    return found


def spread(items: Sequence[T], limit: int) -> list[T]:
    """At most `limit` of the items, evenly spread from the first on."""
    count = min(limit, len(items))
    return [items[i * len(items) // count] for i in range(count)]
