"""Swin's attention: softmax in shifted windows with a relative position bias; other mechanisms on the whole map."""

import math
from typing import cast

import torch
from timm.layers import register_notrace_module, trunc_normal_
from torch import Tensor, nn

from sightline.layers.attention import Attention, project
from sightline.layers.core import Grid, Place
from sightline.layers.position import resample_grid
from sightline.layers.spec import Spec
from sightline.layers.windows import Windows, crop
from sightline.ops.checks import ceil_div, is_symbolic
from sightline.util.errors import InputError


@register_notrace_module
class WindowAttention(Attention):
    """Attention inside windows.

    Args:
        window: side of a window in tokens; 0 for the whole map.
        shift: shift every window by half its side, keeping apart tokens that were not neighbors.

    Softmax shifts the map cyclically and masks pairs of different regions. The other mechanisms have no pairs to mask:
    their shifted windows are laid over a padded map, which gives the same regions.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        mechanism: Spec | str,
        *,
        window: int,
        shift: bool,
        stride: int = 4,
        qkv_bias: bool = True,
        proj_drop: float = 0.0,
    ) -> None:
        super().__init__(dim, num_heads, mechanism, stride=stride, qkv_bias=qkv_bias, proj_drop=proj_drop)
        self.window = window
        self.reads_context &= not window
        self.shifted = shift
        self.position_bias = RelativePositionBias(window, num_heads) if self.mechanism.windowed else None

    def forward(
        self,
        x: Tensor,
        grid: Grid,
        prefix: int = 0,
        key_mask: Tensor | None = None,
        context: Tensor | None = None,
    ) -> Tensor:
        if prefix or key_mask is not None or (context is not None and self.window):
            raise InputError("window attention takes no prefix tokens, no key_mask and no context")
        if self.position_bias is not None:
            return self._softmax(x, grid, self.position_bias)
        if not self.window or (not is_symbolic(*grid) and max(grid) <= self.window):
            # Of `super()` a compiled model checks more at every call.
            return Attention.forward(self, x, grid, context=context)
        size, shift = self._fit(grid)
        windows = Windows(grid, size, (shift[0] and size[0] - shift[0], shift[1] and size[1] - shift[1]))
        out = Attention.forward(self, windows.cut(x), size, key_mask=windows.key_mask(x.shape[0], x.device))
        return windows.join(out)

    def set_window(self, window: int) -> None:
        """Another side of the softmax windows; the bias table is resampled. Other mechanisms keep theirs."""
        if self.position_bias is not None:
            self.window = window
            self.position_bias.set_window(window)

    def shift(self) -> int:
        """Tokens that the windows are shifted by."""
        return self.window // 2 if self.shifted else 0

    def _fit(self, grid: Grid) -> tuple[Grid, Grid]:
        """Window and shift along each side: a side shorter than the window is one window, not shifted."""
        side, shift = self.window, self.shift()
        if is_symbolic(*grid):  # a window that is larger than the map is padded
            return (side, side), (shift * _above(grid[0], side), shift * _above(grid[1], side))
        size = (min(side, grid[0]), min(side, grid[1]))
        return size, (shift if grid[0] > side else 0, shift if grid[1] > side else 0)

    def _softmax(self, x: Tensor, grid: Grid, position_bias: "RelativePositionBias") -> Tensor:
        batch, _, dim = x.shape
        size, shift = self._fit(grid)
        windows = Windows(grid, size)
        full, shifted = windows.full, self.shifted and (is_symbolic(*grid) or any(shift))
        out = Windows(full, size) if shifted else windows
        if shifted:  # the padding moves with the cyclic shift
            x = roll(windows.pad(x), shift).flatten(1, 2)
        tokens = out.cut(x)
        bias = position_bias(size)  # H n n
        if shifted or windows.padded:
            same = _same_region(grid, size, shift, x.device)  # windows n n
            bias = bias + torch.where(same, 0.0, float("-inf")).to(bias.dtype).unsqueeze(1)
            bias = bias.repeat(batch, 1, 1, 1)
        q, k, v = project(self.qkv, self.core.num_heads, tokens)
        mixed = self.core(q, k, v, Place(size, tokens, bias=bias))
        x = out.join(self.proj_drop(self.proj(mixed.flatten(2))))
        if shifted:
            x = crop(roll(x.reshape(batch, *full, dim), (-shift[0], -shift[1])), (0, 0), grid).flatten(1, 2)
        return x


class RelativePositionBias(nn.Module):
    """A bias per head for every offset between two tokens of a window: table ((2w - 1)^2, H)."""

    def __init__(self, window: int, num_heads: int) -> None:
        super().__init__()
        self.table = nn.Parameter(trunc_normal_(torch.empty((2 * window - 1) ** 2, num_heads), std=0.02))

    def forward(self, size: Grid) -> Tensor:
        """(H, n, n) for the n tokens of a window of `size`, which may be smaller than the table's."""
        side = self.side()
        y, x = (torch.arange(s, device=self.table.device) for s in size)
        dy = (y[:, None] - y[None, :] + (side - 1) // 2)[:, None, :, None]  # h 1 h 1
        dx = (x[:, None] - x[None, :] + (side - 1) // 2)[None, :, None, :]  # 1 w 1 w
        index = (dy * side + dx).flatten()
        count = size[0] * size[1]
        return self.table[index].reshape(count, count, -1).permute(2, 0, 1)

    def side(self) -> int:
        """Offsets along one side, 2w - 1."""
        return math.isqrt(int(self.table.shape[0]))

    def set_window(self, window: int) -> None:
        """Resample the table for another window."""
        with torch.no_grad():
            table = resample_bias(self.table, window)
        self.table = nn.Parameter(table.clone(), requires_grad=self.table.requires_grad)


def resample_bias(table: Tensor, window: int) -> Tensor:
    """A relative position table ((2v - 1)^2, H) for windows of side v, resampled to those of side `window`."""
    side = round(table.shape[0] ** 0.5)
    grid = (2 * window - 1, 2 * window - 1)
    return resample_grid(table.reshape(1, side, side, -1), grid, "bicubic").reshape(grid[0] * grid[1], -1)


def _above(length: int, side: int) -> int:
    """1 if the length, a symbol, is above `side`, else 0."""
    if isinstance(length, Tensor):  # as torch.jit.trace has them
        return cast(int, (length - side).clamp(0, 1))
    return cast(int, torch.sym_min(torch.sym_max(length - side, 0), 1))


def roll(x: Tensor, by: Grid) -> Tensor:
    """A map (B, h, w, C) with row by[0] and column by[1] first."""
    if not is_symbolic(*by):
        return x.roll((-by[0], -by[1]), (1, 2))
    for axis in (1, 2):
        x = x.index_select(axis, _rolled(x.shape[axis], by[axis - 1], x.device))
    return x


def _rolled(length: int, by: int, device: torch.device) -> Tensor:
    """The positions by, by + 1, ..., length - 1, 0, ..., by - 1."""
    index = torch.arange(length, device=device) + by
    return torch.where(index < 0, index + length, torch.where(index >= length, index - length, index))


def _same_region(grid: Grid, size: Grid, shift: Grid, device: torch.device) -> Tensor:
    """(windows, n, n): which tokens of a cyclically shifted window belong together. Padding is a separate region."""
    labels = []
    for length, side, by in zip(grid, size, shift, strict=True):
        full = ceil_div(length, side) * side
        index = torch.arange(full, device=device)
        label = (index >= full - side).long() + (
            index >= full - by
        ).long()  # the last window, and what is rolled into it
        labels.append(torch.where(_rolled(full, by, device) < length, label, -9))
    label_map = labels[0][:, None] * 3 + labels[1][None, :]
    label_map = torch.where((labels[0][:, None] < 0) | (labels[1][None, :] < 0), -1, label_map)
    full_grid = (label_map.shape[0], label_map.shape[1])
    cut = Windows(full_grid, size).cut(label_map.reshape(1, -1, 1)).squeeze(-1)
    return cut[:, :, None] == cut[:, None, :]
