"""Stochastic depth."""

import torch
from timm.layers import DropPath
from torch import Tensor, nn


class SharedDropPath(DropPath):
    """timm's stochastic depth with its rate in a tensor: blocks that differ in the rate alone share compiled code.

    Args:
        rate: share of the examples whose branch is left out in training.
    """

    keep: Tensor

    def __init__(self, rate: float) -> None:
        super().__init__(rate)
        self.register_buffer("keep", torch.tensor(1 - rate), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        kept = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(self.keep)
        return x * kept.div_(self.keep)


def drop_path(rate: float) -> nn.Module:
    """Stochastic depth, or nothing for a rate of zero."""
    return SharedDropPath(rate) if rate > 0 else nn.Identity()
