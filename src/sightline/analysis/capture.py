"""What the attention blocks of a model are called with for one image, and where their tokens lie on the map.

Hooks on the cores note queries, keys and values. Windows, stripes and shifts are undone by sending the numbers of the
tokens through the same block.

Shape letters: H heads, D head dim, N tokens of a map, M keys of a window, Q chosen queries.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sightline.analysis.rows import rows_of
from sightline.layers.attention import Attention
from sightline.layers.core import Core, Grid
from sightline.layers.stripe_attention import StripeAttention


@dataclass(frozen=True)
class CoreCall:
    """One core, called on all windows of one image.

    Args:
        core: the mechanism.
        call: q (windows, N, H, D), k and v (windows, M, H, D), and the keywords of `Core.forward`.
        positions: (windows, N), the number of the token at each place from 1 on, 0 for padding.
    """

    core: Core
    call: dict[str, Any]
    positions: Tensor

    @property
    def reduced(self) -> bool:
        """Whether the keys lie on a coarser map than the queries."""
        return self.call["k"].shape[1] != self.positions.shape[1]

    def places(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The window of each token, from 0 on, and its place there."""
        found = torch.full((int(self.positions.max()) + 1, 2), -1, device=self.positions.device)
        windows, inside = torch.meshgrid(
            *(torch.arange(n, device=found.device) for n in self.positions.shape), indexing="ij"
        )
        found[self.positions.flatten()] = torch.stack([windows.flatten(), inside.flatten()], 1)
        chosen = found[tokens.to(found.device) + 1]
        return chosen[:, 0], chosen[:, 1]


@dataclass(frozen=True)
class BlockCall:
    """An attention block called with one image.

    Args:
        name: of the attention module.
        mechanism: as `sightline list --attention` writes it.
        grid: (height, width) of the queries.
        prefix: leading tokens without a place.
        key_grid: of the keys, coarser where a block reduces them.
        parts: its cores; more than one where directions of stripes share the heads.
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
            windows, inside = part.places(torch.as_tensor(tokens))
            found.append(part.call["q"][windows, inside].transpose(0, 1).float())
        return torch.cat(found)

    def _rows(self, part: CoreCall, tokens: Tensor) -> Tensor:
        windows, inside = part.places(tokens)
        pieces, order = [], []
        for window in windows.unique().tolist():
            which = torch.where(windows == window)[0]
            rows = rows_of(part.core, part.call, window, inside[which]).float()  # H q M
            whole = rows.new_zeros(*rows.shape[:2], self.keys + 1)  # the first place takes the padding
            index = self._key_places(part, window).expand_as(rows)
            pieces.append(whole.scatter_add_(2, index, rows)[:, :, 1:])
            order.append(which)
        return torch.cat(pieces, 1)[:, torch.cat(order).argsort()]

    def _key_places(self, part: CoreCall, window: int) -> Tensor:
        """The number of every key of a window from 1 on, 0 for padding."""
        if part.reduced:
            return torch.arange(1, self.keys + 1, device=part.positions.device)
        return part.positions[window]

    def visible(self, tokens: Sequence[int] | Tensor) -> Tensor:
        """Which keys chosen tokens may attend to at all, (parts, Q, keys): those of their windows and regions."""
        found = []
        for part in self.parts:
            windows, inside = part.places(torch.as_tensor(tokens))
            seen = torch.zeros(len(windows), self.keys + 1, dtype=torch.bool, device=windows.device)
            bias = part.call.get("bias")
            for row, (window, place) in enumerate(zip(windows.tolist(), inside.tolist(), strict=True)):
                keys = self._key_places(part, window)
                if bias is not None and bias.ndim == 4:  # regions of a shifted window are kept apart by -inf
                    keys = keys[torch.isfinite(bias[window, 0, place])]
                seen[row, keys] = True
            found.append(seen[:, 1:])
        return torch.stack(found)


@dataclass
class Noted:
    """What an attention module and its cores were called with."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    cores: list[dict[str, Any]] = field(default_factory=list)

    def arguments(self) -> tuple[Tensor, Grid, int]:
        """Tokens, grid and prefix."""
        names = ("x", "grid", "prefix", "key_mask", "context")
        given = {**dict(zip(names, self.args, strict=False)), **self.kwargs}
        return given["x"], given["grid"], given.get("prefix", 0)


def attention_blocks(model: nn.Module) -> list[str]:
    """The names of the attention modules of a model, in the order in which they run."""
    return [name for name, module in model.named_modules() if isinstance(module, Attention | StripeAttention)]


@torch.no_grad()
def capture(model: nn.Module, image: Tensor, blocks: Sequence[str] | None = None) -> list[BlockCall]:
    """Run a model on one image (channels, height, width) and note what its blocks are called with, all by default.

    Raises:
        ValueError: the model has no such block.
    """
    names = attention_blocks(model) if blocks is None else list(blocks)
    modules = dict(model.named_modules())
    for name in names:
        if not isinstance(modules.get(name), Attention | StripeAttention):
            raise ValueError(f"no attention block {name!r}; there are {', '.join(attention_blocks(model)) or 'none'}")
    with ExitStack() as stack:
        noted = {name: stack.enter_context(watched(modules[name])) for name in names}
        model(image.unsqueeze(0))
    return [_block(name, modules[name], noted[name]) for name in names]


@contextmanager
def watched(module: nn.Module) -> Iterator[Noted]:
    """Note what an attention module and its cores are called with."""
    call = Noted()

    def note_module(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        call.args, call.kwargs = args, kwargs
        call.cores.clear()

    def note_core(core: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        q, k, v = args
        call.cores.append({"core": core, "q": q, "k": k, "v": v, **kwargs})

    cores = [part for part in module.modules() if isinstance(part, Core)]
    handles = [module.register_forward_pre_hook(note_module, with_kwargs=True)]
    handles += [core.register_forward_pre_hook(note_core, with_kwargs=True) for core in cores]
    try:
        yield call
    finally:
        for handle in handles:
            handle.remove()


def _block(name: str, module: Any, noted: Noted) -> BlockCall:
    _, grid, prefix = noted.arguments()
    parts = tuple(
        CoreCall(seen["core"], {key: value for key, value in seen.items() if key != "core"}, positions)
        for seen, positions in zip(noted.cores, token_positions(module, noted), strict=True)
    )
    keys = parts[0].call.get("key_grid") or grid
    return BlockCall(name, str(module.mechanism), grid, prefix, keys, parts)


def token_positions(module: nn.Module, noted: Noted) -> list[Tensor]:
    """For every core, (windows, N): the number of the token at each place from 1 on, 0 for padding."""
    x, grid, prefix = noted.arguments()
    if type(module) is Attention:  # one window, in the order of the map
        return [torch.arange(1, x.shape[1] + 1, device=x.device)[None]]
    numbers = torch.arange(1.0, x.shape[1] + 1, device=x.device)[None, :, None].expand(1, -1, x.shape[2])
    with watched(module) as traced, torch.no_grad():
        module(numbers.contiguous(), grid, prefix, context=None)
    return [seen["context"][..., 0].round().long() for seen in traced.cores]
