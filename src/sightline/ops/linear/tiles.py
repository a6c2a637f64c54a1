"""Shared by the kernels of InLine and linear attention: feature maps, tokens of an image, rows of its grid.

A program owns a group of heads of one image: GROUP * D neighboring channels. Pointers to tokens start at the first of
them, so that its channels are 0, 1, 2, ...; those that exist are `live`, a row (1, W).

Letters: T tokens of a tile, W channels of a tile (a power of two), X columns of a strip, D head dim, H heads.
"""

import triton
import triton.language as tl


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
def live_of(D: tl.constexpr, GROUP: tl.constexpr, W: tl.constexpr):
    """Which channels of a tile exist, (1, W)."""
    if GROUP * D == W:
        return tl.full((1, W), 1, tl.int32) != 0
    else:
        return (tl.arange(0, W) < GROUP * D)[None, :]


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
def matrix_of(group, D: tl.constexpr, GROUP: tl.constexpr, W: tl.constexpr):
    """Where (H, D, D) holds the matrices of a group of heads: offsets (W, W), used where `pairs_of` allows."""
    c = tl.arange(0, W)
    return (group * GROUP * D + c)[:, None] * D + (c % D)[None, :]


@triton.jit
def grid_of(grids, image, height, width, VARLEN: tl.constexpr):
    """Height and width of the grid of an image; those of a pack come from a table (images, 2)."""
    if VARLEN:
        return tl.load(grids + 2 * image), tl.load(grids + 2 * image + 1)
    else:
        return height, width


@triton.jit
def rows_of(x, token, first, T: tl.constexpr, W: tl.constexpr):
    """Pointers (T, W) to the tokens first, first + 1, ..."""
    return x + tl.cast(first, tl.int64) * token + (tl.arange(0, T)[:, None] * token + tl.arange(0, W)[None, :])


@triton.jit
def cells_of(x, token, first, col, W: tl.constexpr):
    """Pointers (X, W) to the tokens first + col, for the columns `col` (X,) of a grid row."""
    return x + tl.cast(first, tl.int64) * token + (col[:, None] * token + tl.arange(0, W)[None, :])


@triton.jit
def limit_of(col, height, width):
    """How many rows the columns `col` have: none outside the grid. One comparison then tells if a cell exists."""
    return tl.where((col >= 0) & (col < width), height, 0).to(tl.uint32)


@triton.jit
def limits_of(col, height, width):
    """`limit_of` for the columns left of `col`, `col`, and right of it."""
    return limit_of(col - 1, height, width), limit_of(col, height, width), limit_of(col + 1, height, width)


@triton.jit
def grid_row(x, token, mask, y, col, limit, width, prefix, live, W: tl.constexpr, MASKED: tl.constexpr):
    """Row y of the grid at the columns `col` (X,) as (X, W): zero outside the grid and where masked."""
    ok = (tl.zeros_like(col) + y).to(tl.uint32) < limit  # a negative row is a large number
    first = prefix + y * width
    if MASKED:
        ok &= tl.load(mask + first + col, mask=ok, other=0) != 0
    return tl.load(cells_of(x, token, first, col, W), mask=ok[:, None] & live, other=0)


@triton.jit
def three_columns(x, token, mask, y, col, limits, width, prefix, live, W: tl.constexpr, MASKED: tl.constexpr):
    """Row y of the grid left of the columns `col`, at them, and right of them; `limits` are those of the three."""
    left = grid_row(x, token, mask, y, col - 1, limits[0], width, prefix, live, W, MASKED)
    here = grid_row(x, token, mask, y, col, limits[1], width, prefix, live, W, MASKED)
    right = grid_row(x, token, mask, y, col + 1, limits[2], width, prefix, live, W, MASKED)
    return left, here, right


@triton.jit
def filter_of(weights, image, C, first_channel, live, W: tl.constexpr, FLIP: tl.constexpr):
    """The nine taps of an image, weights (images, 9, C), as rows (1, W); FLIP turns the filter by 180 degrees."""
    ptr = weights + tl.cast(image, tl.int64) * 9 * C + first_channel + tl.arange(0, W)[None, :]
    step = C
    if FLIP:
        ptr += 8 * C
        step = -C
    w0 = tl.load(ptr, mask=live, other=0).to(tl.float32)  # 1 W each
    w1 = tl.load(ptr + step, mask=live, other=0).to(tl.float32)
    w2 = tl.load(ptr + 2 * step, mask=live, other=0).to(tl.float32)
    w3 = tl.load(ptr + 3 * step, mask=live, other=0).to(tl.float32)
    w4 = tl.load(ptr + 4 * step, mask=live, other=0).to(tl.float32)
    w5 = tl.load(ptr + 5 * step, mask=live, other=0).to(tl.float32)
    w6 = tl.load(ptr + 6 * step, mask=live, other=0).to(tl.float32)
    w7 = tl.load(ptr + 7 * step, mask=live, other=0).to(tl.float32)
    w8 = tl.load(ptr + 8 * step, mask=live, other=0).to(tl.float32)
    return w0, w1, w2, w3, w4, w5, w6, w7, w8


@triton.jit
def across(acc, left, here, right, w_left, w_here, w_right):
    """acc + one row of the filter on one row of the grid."""
    return acc + left * w_left + here * w_here + right * w_right
