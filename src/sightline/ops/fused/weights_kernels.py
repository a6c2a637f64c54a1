"""Kernels for the weights of the local residual: the mean token of an image, then two small layers for every head."""

import triton
import triton.language as tl

from sightline.ops.fused.tiles import dot, operand


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
        total += tl.load(x + (t0 + row).to(tl.int64)[:, None] * x_sn, mask=cell, other=0).to(tl.float32)
    place = (tl.cast(part, tl.int64) * tl.num_programs(1) + image) * channels + channel
    tl.store(sums + place, tl.sum(total, 0), mask=channel < channels)


@triton.jit(do_not_specialize=["images", "tokens", "parts"])
def two_layers(
    sums, w1, b1, w2, b2, mean, out, images, tokens, parts, channels, D: tl.constexpr, W: tl.constexpr,
    IMAGES: tl.constexpr, DOT: tl.constexpr,
):
    """A ninth of one head's weights for a tile of images: out (B, C, 3, 3); and the mean token, mean (B, C)."""
    tile, head, ninth = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    image, dim = (tile * IMAGES + tl.arange(0, IMAGES)).to(tl.int64), tl.arange(0, W)
    ok, some = dim < D, (image < images)[:, None]
    channel = head * D + dim
    cell = some & ok[None, :]
    total = tl.zeros((IMAGES, W), tl.float32)
    for part in range(0, parts):
        total += tl.load(sums + (tl.cast(part, tl.int64) * images + image)[:, None] * channels + channel[None, :],
                         mask=cell, other=0)
    total = total / tokens
    if ninth == 0:
        tl.store(mean + image[:, None] * channels + channel[None, :], total, mask=cell)
    square = ok[:, None] & ok[None, :]
    first = tl.load(w1 + channel[None, :] * D + dim[:, None], mask=square, other=0)
    hidden = dot(operand(total, DOT), operand(first, DOT), DOT)
    hidden += tl.load(b1 + channel, mask=ok, other=0).to(tl.float32)[None, :]
    hidden = hidden * (0.5 + 0.5 * tl.erf(hidden * 0.7071067811865476))
    row = (head * 9 + ninth) * D + dim
    second = tl.load(w2 + row[None, :] * D + dim[:, None], mask=square, other=0)
    result = dot(operand(hidden, DOT), operand(second, DOT), DOT)
    result += tl.load(b2 + row, mask=ok, other=0).to(tl.float32)[None, :]
    tl.store(out + image[:, None] * (channels * 9) + row[None, :], result.to(out.dtype.element_ty), mask=cell)
