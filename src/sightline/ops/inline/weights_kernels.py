"""Kernels for the weights of the local residual: the mean token of an image, then two small layers per head.

    hidden = mean W1^T + b1        weights = gelu(hidden) W2^T + b2        (D -> D -> 9 D)

Row c * 9 + tap of a head's W2 makes tap `tap` of its channel c. The weights are laid out tap by tap, as the residual
reads them: (B, 3, 3, C).
"""

import triton
import triton.language as tl

from sightline.ops.common.tiles import dot, operand


@triton.jit(do_not_specialize=["tokens", "chunk"])
def sum_tokens(x, sums, x_sb, x_sn, channels, tokens, chunk, T: tl.constexpr, W: tl.constexpr):
    """The sum of one chunk of an image's tokens, W channels: x (B, N, C) -> sums (parts, B, C)."""
    block, image, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    channel, row = block * W + tl.arange(0, W), tl.arange(0, T)
    x += tl.cast(image, tl.int64) * x_sb + channel[None, :]
    last = tl.minimum(part * chunk + chunk, tokens)
    total = tl.zeros((T, W), tl.float32)
    for t0 in range(part * chunk, last, T):
        cell = (t0 + row < last)[:, None] & (channel < channels)[None, :]
        total += tl.load(x + (t0 + row).to(tl.int64)[:, None] * x_sn, mask=cell, other=0).to(tl.float32)  # T W
    offset = (tl.cast(part, tl.int64) * tl.num_programs(1) + image) * channels + channel
    tl.store(sums + offset, tl.sum(total, 0), mask=channel < channels)


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
def _tap_of(grad, image, channel, tap):
    """Pointers (images, W) to one tap of the gradient of the weights (`Filters`)."""
    return grad.ptr + image[:, None] * grad.image + (channel[None, :] * grad.channel + tap * grad.tap)


@triton.jit
def _gate(x):
    """Phi(x) of the GELU x Phi(x)."""
    return 0.5 + 0.5 * tl.erf(x * 0.7071067811865476)


@triton.jit(do_not_specialize=["images", "tokens", "parts"])
def two_layers(
    sums, w1, b1, w2, b2, mean, out, images, tokens, parts, channels, D: tl.constexpr, W: tl.constexpr,
    IMAGES: tl.constexpr, DOT: tl.constexpr,
):
    """One tap of one head's weights for a tile of images; and the mean token, mean (B, C)."""
    tile, head, tap = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    image, dim = (tile * IMAGES + tl.arange(0, IMAGES)).to(tl.int64), tl.arange(0, W)
    channel = head * D + dim
    cell = (image < images)[:, None] & (dim < D)[None, :]
    total = tl.zeros((IMAGES, W), tl.float32)
    for part in range(0, parts):
        row = tl.cast(part, tl.int64) * images + image
        total += tl.load(sums + row[:, None] * channels + channel[None, :], mask=cell, other=0)  # IMAGES W
    total = total / tokens
    if tap == 0:
        tl.store(mean + image[:, None] * channels + channel[None, :], total, mask=cell)
    hidden = _hidden(total, w1, b1, channel, dim, D, DOT)
    row = channel * 9 + tap
    result = dot(operand(hidden * _gate(hidden), DOT), operand(_square(w2, row, dim, D, True), DOT), DOT)
    result += tl.load(b2 + row, mask=dim < D, other=0).to(tl.float32)[None, :]
    offset = (image[:, None] * 9 + tap) * channels + channel[None, :]
    tl.store(out + offset, result.to(out.dtype.element_ty), mask=cell)


@triton.jit(do_not_specialize=["images", "tokens"])
def two_layers_back(
    grad, mean, w1, b1, w2, d_hidden, d_mean, images, tokens, channels, D: tl.constexpr, W: tl.constexpr,
    IMAGES: tl.constexpr, DOT: tl.constexpr,
):
    """The gradients of the hidden layer and of a single token, both (B, C), for a tile of images and a head."""
    tile, head = tl.program_id(0), tl.program_id(1)
    image, dim = (tile * IMAGES + tl.arange(0, IMAGES)).to(tl.int64), tl.arange(0, W)
    channel = head * D + dim
    cell = (image < images)[:, None] & (dim < D)[None, :]
    offset = image[:, None] * channels + channel[None, :]
    hidden = _hidden(tl.load(mean + offset, mask=cell, other=0), w1, b1, channel, dim, D, DOT)
    back = tl.zeros((IMAGES, W), tl.float32)
    for tap in range(9):
        g = tl.load(_tap_of(grad, image, channel, tap), mask=cell, other=0)  # IMAGES W
        second = _square(w2, channel * 9 + tap, dim, D, False)
        back = dot(operand(g, DOT), operand(second, DOT), DOT, back)
    slope = _gate(hidden) + hidden * tl.exp(-0.5 * hidden * hidden) * 0.3989422804014327
    back = tl.where(cell, back * slope, 0.0)
    tl.store(d_hidden + offset, back, mask=cell)
    first = operand(_square(w1, channel, dim, D, False), DOT)
    tl.store(d_mean + offset, dot(operand(back, DOT), first, DOT) / tokens, mask=cell)


@triton.jit(do_not_specialize=["images"])
def layer_gradients(
    grad, mean, d_hidden, w1, b1, d_w1, d_b1, d_w2, d_b2, images, channels, D: tl.constexpr, W: tl.constexpr,
    IMAGES: tl.constexpr, DOT: tl.constexpr,
):
    """The gradients of the parameters for a head: one tap of the second layer, or (tap 9) the first layer."""
    head, tap = tl.program_id(0), tl.program_id(1)
    dim = tl.arange(0, W)
    channel = head * D + dim
    weight, bias = tl.zeros((W, W), tl.float32), tl.zeros((IMAGES, W), tl.float32)
    for start in range(0, images, IMAGES):
        image = (start + tl.arange(0, IMAGES)).to(tl.int64)
        cell = (image < images)[:, None] & (dim < D)[None, :]
        offset = image[:, None] * channels + channel[None, :]
        inner = tl.load(mean + offset, mask=cell, other=0)
        if tap < 9:
            outer = tl.load(_tap_of(grad, image, channel, tap), mask=cell, other=0).to(tl.float32)  # IMAGES W
            inner = _hidden(inner, w1, b1, channel, dim, D, DOT)
            inner = tl.where(cell, inner * _gate(inner), 0.0)
        else:
            outer = tl.load(d_hidden + offset, mask=cell, other=0)
        weight = dot(operand(tl.trans(outer), DOT), operand(inner, DOT), DOT, weight)
        bias += outer
    bias = tl.sum(bias, 0)
    cell = (dim < D)[:, None] & (dim < D)[None, :]
    if tap < 9:
        row = channel * 9 + tap
        tl.store(d_w2 + row[:, None] * D + dim[None, :], weight.to(d_w2.dtype.element_ty), mask=cell)
        tl.store(d_b2 + row, bias.to(d_b2.dtype.element_ty), mask=dim < D)
    else:
        tl.store(d_w1 + channel[:, None] * D + dim[None, :], weight.to(d_w1.dtype.element_ty), mask=cell)
        tl.store(d_b1 + channel, bias.to(d_b1.dtype.element_ty), mask=dim < D)
