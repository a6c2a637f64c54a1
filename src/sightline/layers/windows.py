"""Windows of a token map: cut, padded if the size does not divide, and joined again."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from sightline.layers.core import Grid


@dataclass(frozen=True)
class Windows:
    """How a map of `grid` tokens is cut into windows of (height, width) `size`.

    `offset` tokens of padding before the first row and column shift the windows over the map; further padding after
    the last ones fills them up.
    """

    grid: Grid
    size: Grid
    offset: Grid = (0, 0)

    @property
    def counts(self) -> Grid:
        """Windows down and across."""
        (height, width), (wh, ww), (top, left) = self.grid, self.size, self.offset
        return -(-(height + top) // wh), -(-(width + left) // ww)

    @property
    def padded(self) -> bool:
        return (self.counts[0] * self.size[0], self.counts[1] * self.size[1]) != self.grid

    def cut(self, x: Tensor) -> Tensor:
        """(B, h * w, C) -> (B * windows, tokens of a window, C)."""
        batch, _, dim = x.shape
        (down, across), (wh, ww), (top, left) = self.counts, self.size, self.offset
        x = x.reshape(batch, *self.grid, dim)
        if self.padded:
            bottom, right = down * wh - self.grid[0] - top, across * ww - self.grid[1] - left
            x = F.pad(x, (0, 0, left, right, top, bottom))
        x = x.reshape(batch, down, wh, across, ww, dim).transpose(2, 3)
        return x.reshape(batch * down * across, wh * ww, dim)

    def join(self, x: Tensor) -> Tensor:
        """The reverse of `cut`; padding is dropped."""
        (down, across), (wh, ww), (top, left) = self.counts, self.size, self.offset
        batch, dim = x.shape[0] // (down * across), x.shape[-1]
        x = x.reshape(batch, down, across, wh, ww, dim).transpose(2, 3).reshape(batch, down * wh, across * ww, dim)
        return x[:, top : top + self.grid[0], left : left + self.grid[1]].flatten(1, 2)

    def key_mask(self, batch: int, device: torch.device) -> Tensor | None:
        """(B * windows, tokens of a window), true for tokens of the map; None without padding."""
        if not self.padded:
            return None
        inside = torch.ones(1, self.grid[0] * self.grid[1], 1, device=device)
        return self.cut(inside).bool().squeeze(-1).repeat(batch, 1)
