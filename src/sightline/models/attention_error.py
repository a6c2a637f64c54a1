"""How far the attention of a student is from that of its teacher, block by block, on the teacher's own inputs."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

BLOCK = "block_{:02d}"  # the key of a block's error in the metrics of a run
ATTENTION = re.compile(r"(?:^|\.)blocks\.\d+\.attn$")


def attention_modules(model: nn.Module) -> list[nn.Module]:
    """The attention of every block, in order."""
    return [module for name, module in model.named_modules() if ATTENTION.search(name)]


def block_errors(row: Mapping[str, Any]) -> list[float]:
    """The errors by block in a row of metrics; empty if it has none."""
    prefix = BLOCK.partition("{")[0]
    return [float(row[key]) for key in sorted(row) if key.startswith(prefix) and row[key] is not None]


class AttentionCalls:
    """What attention modules are called with, and what they return, as long as it exists.

    Args:
        modules: to watch. Copies of them are not watched.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._found: list[tuple[tuple[Any, ...], dict[str, Any], Tensor]] = []
        self._handles = [module.register_forward_hook(self._add, with_kwargs=True) for module in modules]

    def take(self) -> list[tuple[tuple[Any, ...], dict[str, Any], Tensor]]:
        """Positional and keyword arguments and output of every call since the last time."""
        found = list(self._found)
        self._found.clear()
        return found

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _add(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> None:
        self._found.append((args, kwargs, out))


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
    calls = AttentionCalls(attention_modules(teacher))
    try:
        teacher(images)
        found = calls.take()
    finally:
        calls.close()
    pairs = zip(attention_modules(student), found, strict=True)
    return torch.stack([relative_error(module(*args, **kwargs), out) for module, (args, kwargs, out) in pairs])
