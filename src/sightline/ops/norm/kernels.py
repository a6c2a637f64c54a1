"""The gradient of a sum and its layer norm, y = norm(x + update) w + b, from those of the sum and of y.

With the normed tokens n, their gradient g = w dy, and means over the channels,

    dx = d(sum) + (g - mean(g) - n mean(g n)) / deviation

which is d(update) too. A program has some of the rows and adds up dy n, dy and dx over them, for the gradients of w,
of b and of a bias within `update`.
"""

import triton
import triton.language as tl

from sightline.ops.common.kernels import add_block


@triton.jit
def _extra(extra, extra_batch, extra_token, row, tokens, c, ok):
    """Rows of a further gradient (B, N, C) with any strides of images and tokens."""
    start = (row // tokens).to(tl.int64) * extra_batch + (row % tokens).to(tl.int64) * extra_token
    return tl.load(extra + start[:, None] + c, mask=ok, other=0).to(tl.float32)


@triton.jit(do_not_specialize=["rows", "tokens", "steps"])
def norm_back(
    total, mean, rstd, weight, d_total, dy, extra, extra_batch, extra_token, dx, d_update, parts, rows, tokens, steps,
    C: tl.constexpr, W: tl.constexpr, ROWS: tl.constexpr, RAW: tl.constexpr, BIAS: tl.constexpr,
):
    """`d_total` is None if the sum is not used but in the norm. `extra` is added to dy, or with RAW to d(sum); parts is
    (2 or 3, programs, C)."""
    c, i = tl.arange(0, W)[None, :], tl.arange(0, ROWS)
    w = tl.load(weight + c, mask=c < C, other=0).to(tl.float32)
    d_weight = tl.zeros((ROWS, W), tl.float32)
    d_shift = tl.zeros((ROWS, W), tl.float32)
    if BIAS:
        d_bias = tl.zeros((ROWS, W), tl.float32)
    first = tl.program_id(0) * steps * ROWS
    for step in range(steps):
        row = first + step * ROWS + i
        live = row < rows
        ok = live[:, None] & (c < C)
        at = row.to(tl.int64)[:, None] * C + c
        x = tl.load(total + at, mask=ok, other=0).to(tl.float32)
        g = tl.load(dy + at, mask=ok, other=0).to(tl.float32)
        d = tl.zeros((ROWS, W), tl.float32)
        if d_total is not None:
            d += tl.load(d_total + at, mask=ok, other=0).to(tl.float32)
        if extra is not None:
            if RAW:
                d += _extra(extra, extra_batch, extra_token, row, tokens, c, ok)
            else:
                g += _extra(extra, extra_batch, extra_token, row, tokens, c, ok)
        scale = tl.load(rstd + row, mask=live, other=0)[:, None]
        n = (x - tl.load(mean + row, mask=live, other=0)[:, None]) * scale
        if C < W:
            n = tl.where(c < C, n, 0.0)
        d_weight += g * n
        d_shift += g
        g *= w
        along = tl.sum(g * n, 1)[:, None] / C
        d += scale * (g - tl.sum(g, 1)[:, None] / C - n * along)
        tl.store(dx + at, d, mask=ok)
        if d_update is not None:
            tl.store(d_update + at, d.to(d_update.dtype.element_ty), mask=ok)
        if BIAS:
            d_bias += tl.where(ok, d, 0.0)
    size = tl.num_programs(0) * C
    out = parts + tl.program_id(0) * C + tl.arange(0, W)
    inside = tl.arange(0, W) < C
    tl.store(out, tl.sum(d_weight, 0), mask=inside)
    tl.store(out + size, tl.sum(d_shift, 0), mask=inside)
    if BIAS:
        tl.store(out + 2 * size, tl.sum(d_bias, 0), mask=inside)


@triton.jit(do_not_specialize=["programs", "size", "rows", "later_size"])
def norm_sums(
    parts, d_weight, d_shift, d_bias, later, d_later, programs, size, rows, later_size, COUNT: tl.constexpr,
    PARTS: tl.constexpr, BLOCK: tl.constexpr,
):
    """The sums over the programs: parts (COUNT, programs, C) -> (C,) each, with C = size; and later (rows, later_size)
    -> (later_size,)."""
    which = tl.program_id(1)
    if which < COUNT:
        parts += which * programs * size
        if tl.program_id(0) * BLOCK < size:
            if which == 0:
                add_block(parts, d_weight, tl.program_id(0), programs, size, PARTS, BLOCK)
            elif which == 1:
                add_block(parts, d_shift, tl.program_id(0), programs, size, PARTS, BLOCK)
            elif d_bias is not None:
                add_block(parts, d_bias, tl.program_id(0), programs, size, PARTS, BLOCK)
    elif later is not None:
        add_block(later, d_later, tl.program_id(0), rows, later_size, PARTS, BLOCK)
