"""Shared by the kernels of InLine and linear attention: feature maps, channels of a program, tokens and grid rows.

Letters: T tokens of a tile, W channels of a tile (a power of two), X columns of a strip, D head dim, H heads.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from sightline.ops.common.tiles import image_of


class Channels(NamedTuple):
    """The channels of a program: head, dim and index among all channels, each (W,); which exist, a row (1, W)."""

    head: tl.tensor
    dim: tl.tensor
    index: tl.tensor
    live: tl.tensor


class View(NamedTuple):
    """The tokens of one image: pointer to the first, stride between tokens, offsets of a program's channels (1, W)."""

    ptr: tl.tensor
    token: tl.tensor
    offsets: tl.tensor


class Grid(NamedTuple):
    """The grid of an image, and the number of tokens in front of it."""

    height: tl.tensor
    width: tl.tensor
    prefix: tl.tensor


@triton.jit
def phi_of(x, PHI: tl.constexpr):
    """The feature map of float32 numbers."""
    if PHI == "relu":
        x = tl.maximum(x, 0.0)
    elif PHI == "leaky_relu":
        x = tl.where(x > 0, x, 0.01 * x)
    elif PHI == "elu1":
        x = tl.where(x > 0, x + 1.0, tl.exp(tl.minimum(x, 0.0)))
    elif PHI == "exp":
        x = tl.exp(0.2 * x)
    return x


@triton.jit
def slope_of(x, PHI: tl.constexpr):
    """The derivative of the feature map."""
    if PHI == "relu":
        return tl.where(x > 0, 1.0, 0.0)
    elif PHI == "leaky_relu":
        return tl.where(x > 0, 1.0, 0.01)
    elif PHI == "elu1":
        return tl.where(x > 0, 1.0, tl.exp(tl.minimum(x, 0.0)))
    elif PHI == "exp":
        return 0.2 * tl.exp(0.2 * x)
    else:
        return tl.full(x.shape, 1.0, tl.float32)


@triton.jit
def channels_of(group, D: tl.constexpr, GROUP: tl.constexpr, W: tl.constexpr):
    """The channels of a group of heads."""
    c = tl.arange(0, W)
    if GROUP * D == W:
        live = tl.full((1, W), 1, tl.int32) != 0
    else:
        live = (c < GROUP * D)[None, :]
    return Channels(group * GROUP + c // D, c % D, group * GROUP * D + c, live)


@triton.jit
def same_head(D: tl.constexpr, W: tl.constexpr):
    """(W, W): the pairs of channels that belong to one head."""
    c = tl.arange(0, W) // D
    return c[:, None] == c[None, :]


@triton.jit
def pairs_of(D: tl.constexpr, GROUP: tl.constexpr, W: tl.constexpr):
    """The channels that exist (W,), and the pairs of them that belong to one head (W, W)."""
    ok = tl.arange(0, W) < GROUP * D
    return ok, ok[:, None] & ok[None, :] & same_head(D, W)


@triton.jit
def view_of(x, channels, cu, image, tokens, PACKED: tl.constexpr, VARLEN: tl.constexpr):
    """The `View` of an image of `x` (`Tokens`), and its number of tokens; PACKED heads are contiguous channels."""
    ptr, n = image_of(x, cu, image, tokens, VARLEN)
    if PACKED:
        offsets = channels.index[None, :]
    else:
        offsets = (channels.head * x.head + channels.dim * x.dim)[None, :]
    return View(ptr, x.token, offsets), n


@triton.jit
def grid_of(grids, image, height, width, prefix, VARLEN: tl.constexpr):
    """The `Grid` of an image; those of a pack come from a table (images, 2)."""
    if VARLEN:
        return Grid(tl.load(grids + 2 * image), tl.load(grids + 2 * image + 1), prefix)
    else:
        return Grid(height, width, prefix)


@triton.jit
def rows_of(x, first, T: tl.constexpr):
    """Pointers (T, W) to the tokens first, first + 1, ... of a `View`."""
    return x.ptr + tl.cast(first, tl.int64) * x.token + (tl.arange(0, T)[:, None] * x.token + x.offsets)


@triton.jit
def cells_of(x, first, col):
    """Pointers (X, W) to the tokens first + col of a `View`, for the columns `col` (X,) of a grid row."""
    return x.ptr + tl.cast(first, tl.int64) * x.token + (col[:, None] * x.token + x.offsets)


@triton.jit
def limit_of(col, height, width):
    """How many rows the columns `col` have: none outside the grid. One comparison then tells if a cell exists."""
    return tl.where((col >= 0) & (col < width), height, 0).to(tl.uint32)


@triton.jit
def limits_of(col, grid):
    """`limit_of` for the columns left of `col`, `col`, and right of it."""
    left = limit_of(col - 1, grid.height, grid.width)
    here = limit_of(col, grid.height, grid.width)
    return left, here, limit_of(col + 1, grid.height, grid.width)


@triton.jit
def grid_row(x, mask, y, col, limit, grid, live, MASKED: tl.constexpr):
    """Row y of the grid at the columns `col` (X,) as (X, W): zero outside the grid and where masked."""
    ok = (tl.zeros_like(col) + y).to(tl.uint32) < limit  # a negative row is a large number
    first = grid.prefix + y * grid.width
    if MASKED:
        ok &= tl.load(mask + first + col, mask=ok, other=0) != 0
    return tl.load(cells_of(x, first, col), mask=ok[:, None] & live, other=0)


@triton.jit
def three_columns(x, mask, y, col, limits, grid, live, MASKED: tl.constexpr):
    """Row y of the grid left of the columns `col`, at them, and right of them; `limits` are those of the three."""
    left = grid_row(x, mask, y, col - 1, limits[0], grid, live, MASKED)
    here = grid_row(x, mask, y, col, limits[1], grid, live, MASKED)
    right = grid_row(x, mask, y, col + 1, limits[2], grid, live, MASKED)
    return left, here, right


@triton.jit
def filter_of(weights, image, channels, FLIP: tl.constexpr):
    """The nine taps of an image's `Filters` as rows (1, W); FLIP turns the filter by 180 degrees."""
    ptr = weights.ptr + tl.cast(image, tl.int64) * weights.image
    w0 = _tap(ptr, weights, 0, channels, FLIP)
    w1 = _tap(ptr, weights, 1, channels, FLIP)
    w2 = _tap(ptr, weights, 2, channels, FLIP)
    w3 = _tap(ptr, weights, 3, channels, FLIP)
    w4 = _tap(ptr, weights, 4, channels, FLIP)
    w5 = _tap(ptr, weights, 5, channels, FLIP)
    w6 = _tap(ptr, weights, 6, channels, FLIP)
    w7 = _tap(ptr, weights, 7, channels, FLIP)
    w8 = _tap(ptr, weights, 8, channels, FLIP)
    return w0, w1, w2, w3, w4, w5, w6, w7, w8


@triton.jit
def _tap(ptr, weights, tap, channels, FLIP: tl.constexpr):
    pointers = ptr + (8 - tap if FLIP else tap) * weights.tap + channels.index[None, :] * weights.channel
    return tl.load(pointers, mask=channels.live, other=0).to(tl.float32)  # 1 W


@triton.jit
def across(acc, left, here, right, w_left, w_here, w_right):
    """acc + one row of the filter on one row of the grid."""
    return acc + left * w_left + here * w_here + right * w_right
