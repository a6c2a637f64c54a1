"""Linformer on a sequence: E and F are (m, N), as in the paper."""

from typing import Any

import torch
from timm.layers import trunc_normal_
from torch import Tensor, nn

from sightline.layers.core import Grid
from sightline.layers.mechanisms.baselines.linformer import LinformerCore


class SequenceLinformerCore(LinformerCore):
    """Linformer with a column for every place up to `length`.

    A shorter sequence takes the first columns, nothing is resampled: padding behind it changes nothing.
    """

    def __init__(self, dim: int, num_heads: int, length: int, **options: Any) -> None:
        super().__init__(dim, num_heads, 224, **options)  # tables of one place, replaced below
        if options.get("side"):
            raise ValueError(f"linformer(side={options['side']}): a sequence has no side; leave it out")
        rank = self.key_table.shape[0]
        self.length = length
        self.key_table = nn.Parameter(trunc_normal_(torch.empty(rank, 1, length), std=length**-0.5))
        if self.value_table is not None:
            self.value_table = nn.Parameter(trunc_normal_(torch.empty(rank, 1, length), std=length**-0.5))

    def _projections(self, grid: Grid, like: Tensor) -> tuple[Tensor, Tensor]:
        tokens = grid[0] * grid[1]
        if tokens > self.length:
            raise ValueError(f"linformer: {tokens} tokens for tables of {self.length}; build it with a larger length")
        project_k = self.key_table[:, 0, :tokens].to(like.dtype)
        return project_k, project_k if self.value_table is None else self.value_table[:, 0, :tokens].to(like.dtype)
