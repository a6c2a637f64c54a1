"""Kernels of the head-wise convolution, on the tensor cores.

A head's channels share one k x k filter, so a row of the filter on a row of the grid is a product with a banded
matrix: out (X, D) += band_dy (X, X) x_(y + dy) (X, D). A tile is a patch of R rows and X columns of the grid, R X = T
tokens, read once for each of the k rows of the filter; its band has R blocks. Grids wider than X are cut into strips
that overlap by k - 1 columns. The gradient of the input is the same with the filter turned by 180 degrees. That of the
filter sums G x_(y + dy)^T (T, T) over the grid, and then its diagonals.
"""

import triton
import triton.language as tl

from sightline.ops.common.tiles import dot, head_of, operand


@triton.jit
def _patch(x, y, column, height, width, D: tl.constexpr, W: tl.constexpr, X: tl.constexpr, T: tl.constexpr):
    """The tokens of the patch that starts at row y and `column` as (T, W): zero outside the grid."""
    i, c = tl.arange(0, T), tl.arange(0, W)[None, :]
    row, col = y + i // X, column + i % X
    ok = ((row >= 0) & (row < height) & (col >= 0) & (col < width))[:, None]
    if D < W:
        ok = ok & (c < D)
    start = tl.cast(y * width + column, tl.int64) * x[1]
    return tl.load(x[0] + (start + ((i // X * width + i % X) * x[1])[:, None] + c), mask=ok, other=0)


@triton.jit
def _inner(y, column, first, last, bottom, X: tl.constexpr, T: tl.constexpr):
    """Which tokens of a patch belong to the columns first <= x < last, above row `bottom`."""
    i = tl.arange(0, T)
    col = column + i % X
    return (col >= first) & (col < last) & (y + i // X < bottom)


@triton.jit
def _lag(X: tl.constexpr, T: tl.constexpr, K: tl.constexpr):
    """(T, T): how many columns j is right of i, plus K // 2; below zero where the two are in different rows."""
    i, j = tl.arange(0, T)[:, None], tl.arange(0, T)[None, :]
    return tl.where(i // X == j // X, j - i + K // 2, -1)


@triton.jit
def _band(
    w, head, dy, X: tl.constexpr, T: tl.constexpr, K: tl.constexpr, FLIP: tl.constexpr, DOT: tl.constexpr,
):
    """Row dy of a head's filter in w (H, K, K) as a matrix (T, T) to be multiplied with a patch."""
    dx = _lag(X, T, K)
    ok = (dx >= 0) & (dx < K)
    if FLIP:
        dx = K - 1 - dx
        dy = K - 1 - dy
    return operand(tl.load(w + (head * K + dy) * K + dx, mask=ok, other=0), DOT)


@triton.jit
def _piece(piece, height, width, rows, X: tl.constexpr, K: tl.constexpr):
    """A strip and chunk of rows: its first and last column, where its patches start, its first and last row."""
    stride = tl.where(width > X, X - (K - 1), X)
    strips = tl.cdiv(width, stride)
    first = piece % strips * stride
    start = first - tl.where(width > X, K // 2, 0)
    y = piece // strips * rows
    return first, tl.minimum(first + stride, width), start, y, tl.minimum(y + rows, height)


@triton.jit(do_not_specialize=["H", "height", "width", "rows"])
def conv(
    x, x_batch, x_token, w, base, base_batch, base_token, out, out_batch, out_token, H, height, width, rows,
    D: tl.constexpr, W: tl.constexpr, X: tl.constexpr, T: tl.constexpr, K: tl.constexpr, FLIP: tl.constexpr,
    ADD: tl.constexpr, DOT: tl.constexpr,
):
    """One piece of one head of one image: out = base + the convolution of x."""
    image, head = tl.program_id(0) // H, tl.program_id(0) % H
    x, _ = head_of(x, x_batch, x_token, None, image, head, 0, D, False)
    out, _ = head_of(out, out_batch, out_token, None, image, head, 0, D, False)
    if ADD:
        base, _ = head_of(base, base_batch, base_token, None, image, head, 0, D, False)
    first, last, column, top, bottom = _piece(tl.program_id(1), height, width, rows, X, K)
    c = tl.arange(0, W)[None, :]
    i = tl.arange(0, T)
    b0 = _band(w, head, 0, X, T, K, FLIP, DOT)
    b1 = _band(w, head, 1, X, T, K, FLIP, DOT)
    b2 = _band(w, head, 2, X, T, K, FLIP, DOT)
    if K > 3:
        b3 = _band(w, head, 3, X, T, K, FLIP, DOT)
        b4 = _band(w, head, 4, X, T, K, FLIP, DOT)
    if K > 5:
        b5 = _band(w, head, 5, X, T, K, FLIP, DOT)
        b6 = _band(w, head, 6, X, T, K, FLIP, DOT)
    if K > 7:
        b7 = _band(w, head, 7, X, T, K, FLIP, DOT)
        b8 = _band(w, head, 8, X, T, K, FLIP, DOT)
    for y in range(top, bottom, T // X):
        up = y - K // 2
        acc = tl.zeros((T, W), tl.float32)
        acc = dot(b0, operand(_patch(x, up, column, height, width, D, W, X, T), DOT), DOT, acc)
        acc = dot(b1, operand(_patch(x, up + 1, column, height, width, D, W, X, T), DOT), DOT, acc)
        acc = dot(b2, operand(_patch(x, up + 2, column, height, width, D, W, X, T), DOT), DOT, acc)
        if K > 3:
            acc = dot(b3, operand(_patch(x, up + 3, column, height, width, D, W, X, T), DOT), DOT, acc)
            acc = dot(b4, operand(_patch(x, up + 4, column, height, width, D, W, X, T), DOT), DOT, acc)
        if K > 5:
            acc = dot(b5, operand(_patch(x, up + 5, column, height, width, D, W, X, T), DOT), DOT, acc)
            acc = dot(b6, operand(_patch(x, up + 6, column, height, width, D, W, X, T), DOT), DOT, acc)
        if K > 7:
            acc = dot(b7, operand(_patch(x, up + 7, column, height, width, D, W, X, T), DOT), DOT, acc)
            acc = dot(b8, operand(_patch(x, up + 8, column, height, width, D, W, X, T), DOT), DOT, acc)
        ok = _inner(y, column, first, last, bottom, X, T)[:, None]
        if D < W:
            ok = ok & (c < D)
        start = tl.cast(y * width + column, tl.int64)
        token = (i // X * width + i % X)[:, None]
        if ADD:
            added = tl.load(base[0] + start * base[1] + (token * base[1] + c), mask=ok, other=0)
            acc += added.to(tl.float32)
        tl.store(out[0] + start * out[1] + (token * out[1] + c), acc.to(out[0].dtype.element_ty), mask=ok)


@triton.jit(do_not_specialize=["H", "height", "width", "rows"])
def conv_weights(
    x, x_batch, x_token, g, g_batch, g_token, out, H, height, width, rows, D: tl.constexpr, W: tl.constexpr,
    X: tl.constexpr, T: tl.constexpr, K: tl.constexpr, DOT: tl.constexpr,
):
    """Three rows of the filter's gradient from one piece of one head of one image; out is (pieces, B, H, K, K)."""
    row, third = tl.program_id(0), tl.program_id(2)
    image, head = row // H, row % H
    x, _ = head_of(x, x_batch, x_token, None, image, head, 0, D, False)
    g, _ = head_of(g, g_batch, g_token, None, image, head, 0, D, False)
    first, last, column, top, bottom = _piece(tl.program_id(1), height, width, rows, X, K)
    s0 = tl.zeros((T, T), tl.float32)
    s1 = tl.zeros((T, T), tl.float32)
    s2 = tl.zeros((T, T), tl.float32)
    for y in range(top, bottom, T // X):
        gt = _patch(g, y, column, height, width, D, W, X, T)
        gt = operand(tl.where(_inner(y, column, first, last, bottom, X, T)[:, None], gt, 0.0), DOT)
        up = y - K // 2 + 3 * third
        x0 = operand(_patch(x, up, column, height, width, D, W, X, T), DOT)
        x1 = operand(_patch(x, up + 1, column, height, width, D, W, X, T), DOT)
        x2 = operand(_patch(x, up + 2, column, height, width, D, W, X, T), DOT)
        s0 = dot(gt, tl.trans(x0), DOT, s0)
        s1 = dot(gt, tl.trans(x1), DOT, s1)
        s2 = dot(gt, tl.trans(x2), DOT, s2)
    out += ((tl.program_id(1) * tl.num_programs(0) + row) * K + 3 * third) * K
    lag = _lag(X, T, K)
    for dx in tl.static_range(K):
        tl.store(out + dx, tl.sum(tl.sum(tl.where(lag == dx, s0, 0.0), 1), 0))
        if 3 * third + 1 < K:
            tl.store(out + K + dx, tl.sum(tl.sum(tl.where(lag == dx, s1, 0.0), 1), 0))
        if 3 * third + 2 < K:
            tl.store(out + 2 * K + dx, tl.sum(tl.sum(tl.where(lag == dx, s2, 0.0), 1), 0))
