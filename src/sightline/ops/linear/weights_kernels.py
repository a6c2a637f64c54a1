"""The weights of InLine's local residual: the mean token of an image through two small layers per head, and back.

    hidden = mean W1^T + b1        weights = gelu(hidden) W2^T + b2        (D -> D -> 9 D)

Row c * 9 + tap of a head's W2 makes tap `tap` of its channel c. The weights are laid out tap by tap, as the residual
reads them: (images, 9, C).
"""

import triton
import triton.language as tl

from sightline.ops.common.tiles import dot, operand
from sightline.ops.linear.tiles import pairs_of


@triton.jit
def _gate(x):
    """Phi(x) of the GELU x Phi(x)."""
    return 0.5 + 0.5 * tl.erf(x * 0.7071067811865476)


@triton.jit
def hidden_of(mean, w1, b1, first_channel, D: tl.constexpr, GROUP: tl.constexpr, W: tl.constexpr):
    """The hidden layer of a group of heads after its activation, (W,), from the mean token of an image."""
    c = tl.arange(0, W)
    ok, pair = pairs_of(D, GROUP, W)
    channel = first_channel + c
    first = tl.load(w1 + channel[:, None] * D + (c % D)[None, :], mask=pair, other=0).to(tl.float32)  # W W
    hidden = tl.sum(first * mean[None, :], 1) + tl.load(b1 + channel, mask=ok, other=0).to(tl.float32)
    return hidden * _gate(hidden)


@triton.jit
def tap_of(hidden, w2, b2, tap, first_channel, D: tl.constexpr, GROUP: tl.constexpr, W: tl.constexpr):
    """One tap of the weights as a row (1, W)."""
    c = tl.arange(0, W)
    ok, pair = pairs_of(D, GROUP, W)
    row = (first_channel + c) * 9 + tap
    second = tl.load(w2 + row[:, None] * D + (c % D)[None, :], mask=pair, other=0).to(tl.float32)  # W W
    bias = tl.load(b2 + row, mask=ok, other=0).to(tl.float32)  # W
    return (tl.sum(second * hidden[None, :], 1) + bias)[None, :]


@triton.jit
def make_weights(
    mean, w1, b1, w2, b2, first_channel, D: tl.constexpr, GROUP: tl.constexpr, W: tl.constexpr, DOT: tl.constexpr
):
    """The mean token of an image, (W,) channels of a group of heads -> its nine taps, the first rows of (16, W)."""
    tap, c = tl.arange(0, 16)[:, None], tl.arange(0, W)
    ok, pair = pairs_of(D, GROUP, W)
    row, dim = (first_channel + c)[None, :], (c % D)[:, None]
    first = tl.load(w1 + row * D + dim, mask=pair, other=0)  # W W
    bias = tl.load(b1 + row, mask=ok[None, :], other=0).to(tl.float32)  # 1 W
    taps = tl.load(b2 + row * 9 + tap, mask=ok[None, :] & (tap < 9), other=0).to(tl.float32)  # 16 W
    hidden = dot(operand(tl.zeros((16, W), tl.float32) + mean[None, :], DOT), operand(first, DOT), DOT) + bias
    hidden *= _gate(hidden)
    for t in range(0, 9):  # one row of the product each, so that the loads are pipelined
        second = tl.load(w2 + (row * 9 + t) * D + dim, mask=pair, other=0)  # W W
        taps = dot(operand(tl.where(tap == t, hidden, 0.0), DOT), operand(second, DOT), DOT, taps)
    return taps


@triton.jit
def rows_of_taps(taps):
    """The nine taps in (16, W) as rows (1, W)."""
    tap = tl.arange(0, 16)[:, None]
    t0 = tl.sum(tl.where(tap == 0, taps, 0.0), 0)[None, :]
    t1 = tl.sum(tl.where(tap == 1, taps, 0.0), 0)[None, :]
    t2 = tl.sum(tl.where(tap == 2, taps, 0.0), 0)[None, :]
    t3 = tl.sum(tl.where(tap == 3, taps, 0.0), 0)[None, :]
    t4 = tl.sum(tl.where(tap == 4, taps, 0.0), 0)[None, :]
    t5 = tl.sum(tl.where(tap == 5, taps, 0.0), 0)[None, :]
    t6 = tl.sum(tl.where(tap == 6, taps, 0.0), 0)[None, :]
    t7 = tl.sum(tl.where(tap == 7, taps, 0.0), 0)[None, :]
    t8 = tl.sum(tl.where(tap == 8, taps, 0.0), 0)[None, :]
    return t0, t1, t2, t3, t4, t5, t6, t7, t8


@triton.jit
def store_weights(weights, mean, taps, average, image, C, first_channel, live, W: tl.constexpr):
    """Write the taps (16, W) to weights (images, 9, C) and the mean token to mean (images, C), both float32."""
    tap, offset = tl.arange(0, 16)[:, None], first_channel + tl.arange(0, W)[None, :]
    tl.store(mean + tl.cast(image, tl.int64) * C + offset, average[None, :], mask=live)
    tl.store(weights + tl.cast(image, tl.int64) * 9 * C + tap * C + offset, taps, mask=live & (tap < 9))


@triton.jit
def _square(w, row, dim, D: tl.constexpr, TRANSPOSED: tl.constexpr):
    """D rows of a layer's weights (W, W): [row, dim], or transposed."""
    cell = (dim < D)[:, None] & (dim < D)[None, :]
    if TRANSPOSED:
        return tl.load(w + row[None, :] * D + dim[:, None], mask=cell, other=0)
    else:
        return tl.load(w + row[:, None] * D + dim[None, :], mask=cell, other=0)


@triton.jit
def _hidden(mean, w1, b1, channel, dim, D: tl.constexpr, DOT: tl.constexpr):
    """The first layer of a tile of mean tokens, (images, W), before the activation."""
    hidden = dot(operand(mean, DOT), operand(_square(w1, channel, dim, D, True), DOT), DOT)
    return hidden + tl.load(b1 + channel, mask=dim < D, other=0).to(tl.float32)[None, :]


@triton.jit
def _tap(grad, image, tap, part, parts, channel, cell, images, C, IMAGES: tl.constexpr, PARTS: tl.constexpr):
    """The gradient of one tap, summed over PARTS parts from `part` on, for a tile of images, (IMAGES, W)."""
    row = (tl.cast(part, tl.int64) * images + image) * 9 + tap
    ptr = grad + row[:, None] * C + channel[None, :]
    total = tl.load(ptr, mask=cell, other=0)
    for more in tl.static_range(1, PARTS):
        there = cell & (tl.full((IMAGES, 1), part + more, tl.int32) < parts)
        total += tl.load(ptr + tl.cast(more, tl.int64) * images * 9 * C, mask=there, other=0)
    return total


@triton.jit
def _hidden_gradient(
    grad, hidden, w2, image, channel, dim, cell, parts, images, C, D: tl.constexpr, W: tl.constexpr,
    IMAGES: tl.constexpr, PARTS: tl.constexpr, DOT: tl.constexpr,
):
    """From grad (parts, images, 9, C) the gradient of the hidden layer before its activation, (images, W) of a tile."""
    back = tl.zeros((IMAGES, W), tl.float32)
    for step in range(0, 9 * tl.cdiv(parts, PARTS)):  # one loop, whose loads are pipelined
        tap = step % 9
        g = _tap(grad, image, tap, step // 9 * PARTS, parts, channel, cell, images, C, IMAGES, PARTS)
        second = _square(w2, channel * 9 + tap, dim, D, False)
        back = dot(operand(g, DOT), operand(second, DOT), DOT, back)
    slope = _gate(hidden) + hidden * tl.exp(-0.5 * hidden * hidden) * 0.3989422804014327
    return tl.where(cell, back * slope, 0.0)


@triton.jit
def _sum_columns(columns, first, last, channel, dim, C, D: tl.constexpr, W: tl.constexpr, ROWS: tl.constexpr):
    """The sum of the rows first <= r < last of columns (rows, C), (W,)."""
    total = tl.zeros((ROWS, W), tl.float32)
    for start in range(first, last, ROWS):
        row = (start + tl.arange(0, ROWS)).to(tl.int64)
        cell = (row < last)[:, None] & (dim < D)[None, :]
        total += tl.load(columns + row[:, None] * C + channel[None, :], mask=cell, other=0)
    return tl.sum(total, 0)


@triton.jit(do_not_specialize=["parts", "pieces", "images", "tokens"])
def layers_back(
    grad, mean, w1, b1, w2, columns, d_token, d_w1, d_b1, d_w2, d_b2, d_bias, parts, pieces, images, tokens, C,
    D: tl.constexpr, W: tl.constexpr, IMAGES: tl.constexpr, PARTS: tl.constexpr, DOT: tl.constexpr,
):
    """For a head, from grad (parts, images, 9, C): one tap of the second layer (piece 0 to 8), the first layer
    (piece 9), or the gradient of each token of a tile of images (from piece 10 on), (images, C).

    With `columns` (1 + pieces, images, C), the last two programs of a head make the gradient (3 C,) of the bias of q, k
    and v, which are the sums over the tokens; that of k is zero, as InLine attention does not change if all keys are
    shifted.
    """
    head, piece = tl.program_id(0), tl.program_id(1)
    dim = tl.arange(0, W)
    channel = head * D + dim
    square = (dim < D)[:, None] & (dim < D)[None, :]
    tiles = tl.cdiv(images, IMAGES)
    if piece >= 10 + tiles:
        if columns is not None:
            of_v = piece - 10 - tiles
            first, last = of_v * images, (1 + of_v * pieces) * images
            total = _sum_columns(columns, first, last, channel, dim, C, D, W, IMAGES)
            tl.store(d_bias + 2 * of_v * C + channel, total.to(d_bias.dtype.element_ty), mask=dim < D)
            if of_v == 1:
                tl.store(d_bias + C + channel, tl.zeros((W,), d_bias.dtype.element_ty), mask=dim < D)
    elif piece >= 10:
        image = ((piece - 10) * IMAGES + tl.arange(0, IMAGES)).to(tl.int64)
        cell = (image < images)[:, None] & (dim < D)[None, :]
        offset = image[:, None] * C + channel[None, :]
        hidden = _hidden(tl.load(mean + offset, mask=cell, other=0), w1, b1, channel, dim, D, DOT)
        back = _hidden_gradient(
            grad, hidden, w2, image, channel, dim, cell, parts, images, C, D, W, IMAGES, PARTS, DOT
        )
        total = dot(operand(back, DOT), operand(_square(w1, channel, dim, D, False), DOT), DOT) / tokens
        tl.store(d_token + offset, total.to(d_token.dtype.element_ty), mask=cell)
    elif piece == 9:
        weight, bias = tl.zeros((W, W), tl.float32), tl.zeros((IMAGES, W), tl.float32)
        for tile in range(0, tiles):
            image = (tile * IMAGES + tl.arange(0, IMAGES)).to(tl.int64)
            cell = (image < images)[:, None] & (dim < D)[None, :]
            inner = tl.load(mean + image[:, None] * C + channel[None, :], mask=cell, other=0)  # IMAGES W
            hidden = _hidden(inner, w1, b1, channel, dim, D, DOT)
            back = _hidden_gradient(
                grad, hidden, w2, image, channel, dim, cell, parts, images, C, D, W, IMAGES, PARTS, DOT
            )
            weight = dot(operand(tl.trans(back), DOT), operand(inner, DOT), DOT, weight)
            bias += back
        tl.store(d_w1 + channel[:, None] * D + dim[None, :], weight.to(d_w1.dtype.element_ty), mask=square)
        tl.store(d_b1 + channel, tl.sum(bias, 0).to(d_b1.dtype.element_ty), mask=dim < D)
    else:
        weight, bias = tl.zeros((W, W), tl.float32), tl.zeros((IMAGES, W), tl.float32)
        steps = tl.cdiv(parts, PARTS)
        for step in range(0, tiles * steps):
            image = (step // steps * IMAGES + tl.arange(0, IMAGES)).to(tl.int64)
            cell = (image < images)[:, None] & (dim < D)[None, :]
            outer = _tap(grad, image, piece, step % steps * PARTS, parts, channel, cell, images, C, IMAGES, PARTS)
            inner = tl.load(mean + image[:, None] * C + channel[None, :], mask=cell, other=0)  # IMAGES W
            hidden = _hidden(inner, w1, b1, channel, dim, D, DOT)
            inner = tl.where(cell, hidden * _gate(hidden), 0.0)
            weight = dot(operand(tl.trans(outer), DOT), operand(inner, DOT), DOT, weight)
            bias += outer
        row = channel * 9 + piece
        tl.store(d_w2 + row[:, None] * D + dim[None, :], weight.to(d_w2.dtype.element_ty), mask=square)
        tl.store(d_b2 + row, tl.sum(bias, 0).to(d_b2.dtype.element_ty), mask=dim < D)
