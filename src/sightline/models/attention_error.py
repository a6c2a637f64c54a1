"""How far the attention of a student is from that of its teacher, block by block, on the teacher's own inputs."""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

BLOCK = "block_{:02d}"  # the key of a block's error in the metrics of a run
Call = tuple[tuple[Any, ...], dict[str, Any], Tensor]
ATTENTION = re.compile(r"(?:^|\.)blocks\.\d+\.attn$")


def attention_modules(model: nn.Module) -> list[nn.Module]:
    """The attention of every block, in order."""
    return [module for name, module in model.named_modules() if ATTENTION.search(name)]


def block_errors(row: Mapping[str, Any]) -> list[float]:
    """The errors by block in a row of metrics; empty if it has none."""
    prefix = BLOCK.partition("{")[0]
    return [float(row[key]) for key in sorted(row) if key.startswith(prefix) and row[key] is not None]


class Watched(nn.Module):
    """An attention, and its last call. No hook: compiled blocks with different hooks would not share their code."""

    def __init__(self, attn: nn.Module) -> None:
        super().__init__()
        self.attn = attn
        self.call: Call | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        out: Tensor = self.attn(*args, **kwargs)
        self.call = (args, kwargs, out)
        return out


class AttentionCalls:
    """What the attention of every block is called with, and what it returns, until `close`.

    Args:
        model: whose attention is put into `Watched` modules.
    """

    def __init__(self, model: nn.Module) -> None:
        modules = set(attention_modules(model))
        self._owners = [owner for owner in model.modules() if getattr(owner, "attn", None) in modules]
        self.attention = [owner.attn for owner in self._owners]
        self._watched = [Watched(attn) for attn in self.attention]  # type: ignore[arg-type]
        for owner, watched in zip(self._owners, self._watched, strict=True):
            owner.attn = watched

    def take(self) -> list[Call]:
        """Positional and keyword arguments and output of the last call of every block."""
        found = [watched.call for watched in self._watched]
        for watched in self._watched:
            watched.call = None
        return [call for call in found if call is not None]

    def close(self) -> None:
        for owner, attn in zip(self._owners, self.attention, strict=True):
            owner.attn = attn


class RelativeError(nn.Module):
    """`relative_error` as a module, so that it can be compiled."""

    def forward(self, found: Tensor, wanted: Tensor) -> Tensor:
        return relative_error(found, wanted)


def relative_error(found: Tensor, wanted: Tensor) -> Tensor:
    """The squared difference over the variance of what is wanted, (B, ...): the mean over images, in float32."""
    wanted = wanted.float().flatten(1)
    gap = (found.float().flatten(1) - wanted).square().mean(1)
    return (gap / wanted.var(1, correction=0).clamp(min=1e-12)).mean()


@torch.no_grad()
def attention_errors(teacher: nn.Module, student: nn.Module, images: Tensor) -> Tensor:
    """The relative squared error of every block's attention, (blocks,), each with the teacher's input.

    Args:
        teacher, student: sightline models with the same blocks.
        images: (batch, channels, height, width), normalized.
    """
    calls = AttentionCalls(teacher)
    try:
        teacher(images)
        found = calls.take()
    finally:
        calls.close()
    pairs = zip(attention_modules(student), found, strict=True)
    return torch.stack([relative_error(module(*args, **kwargs), out) for module, (args, kwargs, out) in pairs])
