"""What the kernels of InLine and linear attention share: feature maps, matrix products, and where a tile lies.

Letters: T tokens of a tile, W channels of a tile (a power of two), D head dim, H heads.
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
def operand(x, DOT: tl.constexpr):
    """`x` in the type that matrix products take: bfloat16 for bfloat16 tensors, else float32.

    float16 tensors are multiplied as tf32, which holds their digits and does not overflow.
    """
    if DOT == "bf16":
        return x.to(tl.bfloat16)
    else:
        return x.to(tl.float32)


@triton.jit
def dot(a, b, DOT: tl.constexpr, acc=None):
    """acc + a b in float32."""
    if DOT == "fp32":
        return tl.dot(a, b, acc, input_precision="tf32x3", out_dtype=tl.float32)
    elif DOT == "tf32":
        return tl.dot(a, b, acc, input_precision="tf32", out_dtype=tl.float32)
    else:
        return tl.dot(a, b, acc, out_dtype=tl.float32)


@triton.jit
def channels_of(group, D: tl.constexpr, GROUP: tl.constexpr, W: tl.constexpr):
    """Head and dim of a tile's channels, their place among all channels, and which exist, as a row (1, W)."""
    c = tl.arange(0, W)
    head = group * GROUP + c // D
    if GROUP * D == W:
        live = tl.full((1, W), 1, tl.int32) != 0
    else:
        live = (c < GROUP * D)[None, :]
    return head, c % D, group * GROUP * D + c, live


@triton.jit
def offsets_of(head, dim, channel, stride_h, stride_d, PACKED: tl.constexpr):
    """Offsets of a tile's channels, a row (1, W); heads that lie side by side are read as one row."""
    if PACKED:
        return channel[None, :]
    else:
        return (head * stride_h + dim * stride_d)[None, :]


@triton.jit
def same_head(D: tl.constexpr, W: tl.constexpr):
    """(W, W): the pairs of channels that belong to one head."""
    c = tl.arange(0, W) // D
    return c[:, None] == c[None, :]


@triton.jit
def image_of(x, cu, image, tokens, stride_b, stride_n, VARLEN: tl.constexpr):
    """An image's first token, and its number of tokens."""
    if VARLEN:
        start = tl.load(cu + image)
        return x + start.to(tl.int64) * stride_n, (tl.load(cu + image + 1) - start).to(tl.int32)
    else:
        return x + tl.cast(image, tl.int64) * stride_b, tokens


@triton.jit
def grid_of(grids, image, height, width, VARLEN: tl.constexpr):
    if VARLEN:
        return tl.load(grids + 2 * image), tl.load(grids + 2 * image + 1)
    else:
        return height, width


@triton.jit
def rows_of(x, first, stride_n, offsets, T: tl.constexpr):
    """Pointers (T, W) to the tokens first, first + 1, ... of an image."""
    return x + tl.cast(first, tl.int64) * stride_n + (tl.arange(0, T)[:, None] * stride_n + offsets)


@triton.jit
def limit_of(col, height, width):
    """How many rows the columns `col` have: none outside of the grid. One comparison then tells if a cell exists."""
    return tl.where((col >= 0) & (col < width), height, 0).to(tl.uint32)


@triton.jit
def grid_row(x, mask, y, col, limit, prefix, width, x_sn, x_off, live, MASKED: tl.constexpr):
    """Row y of the grid at the columns `col` (T,) as (T, W): zero outside of the grid and where masked."""
    ok = (tl.zeros_like(col) + y).to(tl.uint32) < limit  # a negative row is a large number
    place = prefix + y * width
    if MASKED:
        ok &= tl.load(mask + place + col, mask=ok, other=0) != 0
    return tl.load(
        x + tl.cast(place, tl.int64) * x_sn + (col[:, None] * x_sn + x_off), mask=ok[:, None] & live, other=0
    )


@triton.jit
def three_columns(x, mask, y, col, limits, prefix, width, x_sn, x_off, live, MASKED: tl.constexpr):
    """Row y of the grid left of the columns `col`, at them, and right of them; `limits` are those of the three."""
    left = grid_row(x, mask, y, col - 1, limits[0], prefix, width, x_sn, x_off, live, MASKED)
    here = grid_row(x, mask, y, col, limits[1], prefix, width, x_sn, x_off, live, MASKED)
    right = grid_row(x, mask, y, col + 1, limits[2], prefix, width, x_sn, x_off, live, MASKED)
    return left, here, right


@triton.jit
def filter_of(weights, channel, live, w_sc, w_st, FLIP: tl.constexpr):
    """The nine weights of every channel as rows (1, W), tap by tap; FLIP turns the filter by 180 degrees."""
    w0 = _tap(weights, 0, channel, live, w_sc, w_st, FLIP)
    w1 = _tap(weights, 1, channel, live, w_sc, w_st, FLIP)
    w2 = _tap(weights, 2, channel, live, w_sc, w_st, FLIP)
    w3 = _tap(weights, 3, channel, live, w_sc, w_st, FLIP)
    w4 = _tap(weights, 4, channel, live, w_sc, w_st, FLIP)
    w5 = _tap(weights, 5, channel, live, w_sc, w_st, FLIP)
    w6 = _tap(weights, 6, channel, live, w_sc, w_st, FLIP)
    w7 = _tap(weights, 7, channel, live, w_sc, w_st, FLIP)
    w8 = _tap(weights, 8, channel, live, w_sc, w_st, FLIP)
    return w0, w1, w2, w3, w4, w5, w6, w7, w8


@triton.jit
def _tap(weights, tap, channel, live, w_sc, w_st, FLIP: tl.constexpr):
    place = weights + (8 - tap if FLIP else tap) * w_st + channel[None, :] * w_sc
    return tl.load(place, mask=live, other=0).to(tl.float32)


@triton.jit
def across(acc, left, here, right, w_left, w_here, w_right):
    """acc + one row of the filter on one row of the grid."""
    return acc + left * w_left + here * w_here + right * w_right
