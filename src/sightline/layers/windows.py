"""Windows of a token map: cut, padded if the size does not divide, and joined again."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from sightline.layers.core import Grid
from sightline.ops.checks import ceil_div, is_symbolic


def crop(x: Tensor, start: Grid, size: Grid) -> Tensor:
    """A part of a map (B, height, width, C)."""
    if not is_symbolic(*start, *size, *x.shape[1:3]):
        return x[:, start[0] : start[0] + size[0], start[1] : start[1] + size[1]]
    for axis in (0, 1):  # a slice would have a length that torch.export cannot know to be `size`
        x = x.index_select(axis + 1, torch.arange(size[axis], device=x.device) + start[axis])
    return x


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
        down = 1 if is_symbolic(wh) else ceil_div(height + top, wh)  # a symbol is that of the whole side
        return down, 1 if is_symbolic(ww) else ceil_div(width + left, ww)

    @property
    def full(self) -> Grid:
        """The size of the map with its padding."""
        return self.counts[0] * self.size[0], self.counts[1] * self.size[1]

    @property
    def padded(self) -> bool:
        """Whether there is padding; taken for granted if sizes are symbols."""
        return is_symbolic(*self.full, *self.grid) or self.full != self.grid

    def pad(self, x: Tensor) -> Tensor:
        """(B, h * w, C) -> (B, height, width, C), the padded map."""
        x = x.reshape(x.shape[0], *self.grid, x.shape[2])
        if not self.padded:
            return x
        (height, width), (top, left) = self.full, self.offset
        return F.pad(x, (0, 0, left, width - self.grid[1] - left, top, height - self.grid[0] - top))

    def cut(self, x: Tensor) -> Tensor:
        """(B, h * w, C) -> (B * windows, tokens of a window, C)."""
        batch, _, dim = x.shape
        (down, across), (wh, ww) = self.counts, self.size
        x = self.pad(x).reshape(batch, down, wh, across, ww, dim).transpose(2, 3)
        return x.reshape(batch * down * across, wh * ww, dim)

    def join(self, x: Tensor) -> Tensor:
        """The reverse of `cut`; padding is dropped."""
        (down, across), (wh, ww) = self.counts, self.size
        batch, dim = x.shape[0] // (down * across), x.shape[-1]
        x = x.reshape(batch, down, across, wh, ww, dim).transpose(2, 3).reshape(batch, *self.full, dim)
        return crop(x, self.offset, self.grid).flatten(1, 2)

    def key_mask(self, batch: int, device: torch.device) -> Tensor | None:
        """(B * windows, tokens of a window), true for tokens of the map; None without padding."""
        if not self.padded:
            return None
        inside = torch.ones(1, self.grid[0] * self.grid[1], 1, device=device)
        return self.cut(inside).bool().squeeze(-1).repeat(batch, 1)
