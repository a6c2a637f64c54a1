"""Masking: what a model loses when queries cannot see their neighbours, or as many random keys.

The table of the InLine paper. Inside the context manager every query of every block attends only to the keys that are
left, as if the others were not there: rows that sum to one by division (softmax, linear) are divided again, InLine's
are centred again over the keys that are left, and rows without a sum (SOFT) lose the terms. Local terms (residual,
convolutions) and class tokens stay.

    with masked(model, Mask(3)):
        logits = model(images)
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sightline.analysis.capture import Noted, attention_blocks, token_positions
from sightline.analysis.locality import near_keys
from sightline.layers.core import Core, Grid
from sightline.layers.mechanisms.inline import InlineCore

CHUNK = 1 << 24  # weights in memory at a time
TOLERANCE = 1e-3  # of row sums that are one by division


@dataclass
class Mask:
    """Which keys are hidden from a query: those of its `size` x `size` neighbourhood, or as many random ones."""

    size: int
    random: bool = False
    seed: int = 0
    generator: torch.Generator = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(self.seed)

    def hidden(self, places: Tensor, grid: Grid, keys: Tensor, key_grid: Grid, images: int = 1) -> Tensor:
        """(images or 1, Q, M) for queries at `places` of a grid and keys at `keys` of theirs, -1 for none."""
        near = near_keys(places, grid, key_grid, 0, self.size)  # Q, places of keys
        has_place = keys >= 0
        local = (near[:, keys.clamp(min=0)] & has_place)[None]
        if not self.random:
            return local
        draw = torch.rand((images, *local.shape[1:]), generator=self.generator).to(local.device)
        return draw.masked_fill(~has_place, 2.0).argsort(-1).argsort(-1) < local.sum(-1, keepdim=True)


@contextmanager
def masked(model: nn.Module, mask: Mask) -> Iterator[None]:
    """Hide keys in every attention block of a model."""
    handles: list[Any] = []
    modules = dict(model.named_modules())
    try:
        for name in attention_blocks(model):
            handles += _mask_block(modules[name], mask)
        yield
    finally:
        for handle in handles:
            handle.remove()


def _mask_block(module: nn.Module, mask: Mask) -> list[Any]:
    cores = [part for part in module.modules() if isinstance(part, Core)]
    state: dict[str, Any] = {"tracing": False}

    def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not state["tracing"]:
            noted = Noted(args, kwargs)
            x, grid, prefix = noted.arguments()
            one = Noted((x[:1], grid, prefix))
            state["tracing"] = True
            try:
                state.update(positions=token_positions(module, one), grid=grid, prefix=prefix)
            finally:
                state["tracing"] = False

    def correct(number: int) -> Any:
        def hook(core: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> Tensor | None:
            if state["tracing"]:
                return None
            return _hide(core, args, kwargs, out, state["positions"][number], state["grid"], state["prefix"], mask)

        return hook

    handles = [module.register_forward_pre_hook(note, with_kwargs=True)]
    return handles + [core.register_forward_hook(correct(i), with_kwargs=True) for i, core in enumerate(cores)]


@torch.no_grad()
def _hide(
    core: Core, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor, positions: Tensor, grid: Grid,
    prefix: int, mask: Mask,
) -> Tensor:  # fmt: skip
    """The output (B, N, H, D) of a core with its weights replaced by those of the keys that are left."""
    q, k, v = args
    key_grid = kwargs.get("key_grid") or grid
    out = out.clone()
    for number, window in enumerate(positions):
        which = torch.arange(number, q.shape[0], len(positions), device=q.device)  # this window of every image
        keywords = _keywords(kwargs, which)
        places = window - 1 - prefix
        keys = torch.arange(k.shape[1], device=k.device) if k.shape[1] != len(window) else places
        size = max(1, CHUNK // (len(which) * k.shape[1] * q.shape[2]))
        for chunk in torch.arange(q.shape[1], device=q.device).split(size):
            weights = core.rows(q[which], k[which], chunk, **keywords)  # b H Q M
            hidden = mask.hidden(places[chunk], grid, keys, key_grid, len(which))
            hidden = hidden & (window[chunk] > prefix)[:, None]
            change = left_over(core, weights, hidden, keywords.get("key_mask")) - weights
            out[which[:, None], chunk] += apply_weights(change, v[which]).to(out.dtype)
    return out


def _keywords(kwargs: dict[str, Any], which: Tensor) -> dict[str, Any]:
    """The keywords of some windows."""
    found = dict(kwargs)
    for name in ("context", "key_mask", "local"):
        if found.get(name) is not None:
            found[name] = found[name][which]
    if found.get("bias") is not None and found["bias"].ndim == 4:
        found["bias"] = found["bias"][which]
    return found


def left_over(core: Core, weights: Tensor, hidden: Tensor, key_mask: Tensor | None = None) -> Tensor:
    """The weights (B, H, Q, M) of the keys that are left when `hidden` (B or 1, Q, M) are taken away.

    As the mechanism would have them: centred over what is left (InLine), divided by its sum where rows sum to one, and
    else as they are. A row without any key is zero.
    """
    gone = hidden[:, None]
    kept = weights.masked_fill(gone, 0)
    if isinstance(core, InlineCore):
        counts = torch.ones_like(weights[:, :1, :1]) if key_mask is None else key_mask[:, None, None].to(weights)
        before, after = counts.sum(-1, keepdim=True), (counts * ~gone).sum(-1, keepdim=True).clamp(min=1)
        # w = (s (a - mean a) + 1) / N, so the weights of fewer keys follow from w alone.
        centred = (kept - kept.sum(-1, keepdim=True) / after) * (before / after) + 1 / after
        return (centred * counts).masked_fill(gone, 0)
    if divides(weights):
        total = kept.sum(-1, keepdim=True)
        return torch.where(total.abs() > 1e-12, kept / total, 0.0)
    return kept


def divides(weights: Tensor) -> bool:
    """Whether rows sum to one, so that what is left is divided by its sum."""
    return bool(((weights.sum(-1) - 1).abs() < TOLERANCE).all())


def apply_weights(weights: Tensor, v: Tensor) -> Tensor:
    """(B, heads, Q, M) times values (B, M, H, D) -> (B, Q, H, D); a head a channel where there are as many (hydra)."""
    heads, dim = v.shape[2:]
    if weights.shape[1] == heads * dim and dim > 1:
        return torch.einsum("bcqm,bmc->bqc", weights, v.flatten(2)).unflatten(2, (heads, dim))
    if weights.shape[1] != heads:
        raise ValueError(f"a mechanism with {weights.shape[1]} heads of its own cannot be masked; choose another one")
    return torch.einsum("bhqm,bmhd->bqhd", weights, v)
