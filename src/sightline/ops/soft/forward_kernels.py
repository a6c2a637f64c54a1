"""Forward kernels of SOFT: out = P K (P^T v), P = exp(-|q - l|^2 / 2) and K the inverse between the landmarks.

P is recomputed for every tile of tokens and never stored. A program owns one head of one image and a chunk of its
tokens: Z = P^T v of the chunk, while other programs of the same launch invert (`forward_sums`), Y = K Z
(`forward_mix`), then a pass over the tokens (`forward_write`). More than 64 landmarks come in blocks, and their inverse
by `matrix_kernels`. One program for all of a short image is no faster: Newton's steps, which are most of its time,
already run next to the sums.

Z, Y and K are float32 and padded with zeros: Z, Y (images, heads, blocks * M, W), K (images, heads, M, M).
"""

import triton
import triton.language as tl

from sightline.ops.common.tiles import dot, head_of
from sightline.ops.soft.tiles import (
    gaussian,
    half_square,
    landmark_inverse,
    load_rows,
    store_rows,
    unmasked,
    weights_by_matrix,
    weights_by_tokens,
)


@triton.jit
def sum_tokens(
    q, v, mask, landmarks, half, first, last, scale, D: tl.constexpr, W: tl.constexpr, M: tl.constexpr, T: tl.constexpr,
    MASKED: tl.constexpr, DOT: tl.constexpr,
):
    """P^T v (M, W) over the tokens first <= t < last."""
    total = tl.zeros((M, W), tl.float32)
    for t0 in range(first, last, T):
        qt = load_rows(q, t0, last, D, T, W)  # T W
        vt = load_rows(v, t0, last, D, T, W)  # T W
        if MASKED:
            ok = unmasked(mask, t0, last, T)[:, None]
            qt, vt = tl.where(ok, qt, 0.0).to(q[0].dtype.element_ty), tl.where(ok, vt, 0.0).to(v[0].dtype.element_ty)
        weights = gaussian(landmarks, qt, half, half_square(qt, scale, DOT), scale, DOT)  # M T
        total = weights_by_tokens(weights, vt, DOT, total)
    return total


@triton.jit
def write_tokens(
    q, out, landmarks, half, mixed, first, last, scale, D: tl.constexpr, W: tl.constexpr, T: tl.constexpr,
    DOT: tl.constexpr,
):
    """out = P Y of the tokens first <= t < last."""
    for t0 in range(first, last, T):
        qt = load_rows(q, t0, last, D, T, W)  # T W
        weights = gaussian(qt, landmarks, half_square(qt, scale, DOT), half, scale, DOT)  # T M
        store_rows(out, weights_by_matrix(weights, mixed, DOT), t0, last, D, T, W)


@triton.jit
def block_of(x, row, first, M: tl.constexpr, W: tl.constexpr):
    """Pointers to (M, W) of a padded matrix: `first` rows into matrix `row` of those that x holds."""
    start = x + tl.cast(row, tl.int64) * W + first * W
    return start + tl.arange(0, M)[:, None] * W + tl.arange(0, W)[None, :]


@triton.jit(do_not_specialize=["H", "tokens", "m", "chunk", "blocks", "steps", "scale", "factor", "ridge", "shrink"])
def forward_sums(
    q, q_batch, q_token, v, v_batch, v_token, marks, marks_batch, marks_token, mask, cu, cu_l, sums, core, H, tokens, m,
    chunk, blocks, steps, scale, factor, ridge, shrink, D: tl.constexpr, W: tl.constexpr, M: tl.constexpr,
    T: tl.constexpr, NORMALIZED: tl.constexpr, MASKED: tl.constexpr, VARLEN: tl.constexpr, DOT: tl.constexpr,
    INVERT: tl.constexpr,
):
    """P^T v of one chunk and block of landmarks; with INVERT the first programs make the inverse instead."""
    scale, factor = tl.cast(scale, tl.float32), tl.cast(factor, tl.float32)
    ridge, shrink = tl.cast(ridge, tl.float32), tl.cast(shrink, tl.float32)
    row, piece = tl.program_id(0), tl.program_id(1)
    image, head = row // H, row % H
    marks, count = head_of(marks, marks_batch, marks_token, cu_l, image, head, m, D, VARLEN)
    if INVERT:
        piece -= 1
    first = tl.maximum(piece, 0) % blocks * M
    landmarks = load_rows(marks, first, count, D, M, W)  # M W
    half = half_square(landmarks, 1.0, DOT)
    if piece < 0:
        if INVERT:
            inverse = landmark_inverse(landmarks, count, factor, ridge, steps, shrink, M, NORMALIZED, DOT)
            tl.store(block_of(core, row * M, 0, M, M), inverse)
    else:
        part = piece // blocks
        q_head, n = head_of(q, q_batch, q_token, cu, image, head, tokens, D, VARLEN)
        v_head, _ = head_of(v, v_batch, v_token, cu, image, head, tokens, D, VARLEN)
        if MASKED:
            mask += tl.cast(image, tl.int64) * tokens
        total = sum_tokens(
            q_head, v_head, mask, landmarks, half, part * chunk, tl.minimum(part * chunk + chunk, n), scale, D, W, M, T,
            MASKED, DOT,
        )
        offset = (tl.cast(part, tl.int64) * tl.num_programs(0) + row) * blocks * M
        tl.store(block_of(sums, offset, first, M, W), total)


@triton.jit
def sum_parts(parts_ptr, row, parts, stride, M: tl.constexpr, W: tl.constexpr):
    """The sum of the parts of matrix `row`, (M, W)."""
    total = tl.zeros((M, W), tl.float32)
    for part in range(parts):
        total += tl.load(block_of(parts_ptr, tl.cast(part, tl.int64) * stride + row * M, 0, M, W))  # M W
    return total


@triton.jit(do_not_specialize=["parts"])
def forward_mix(partial, core, sums, mixed, parts, M: tl.constexpr, W: tl.constexpr):
    """Z, the sum of its parts, and Y = K Z; for at most 64 landmarks."""
    row = tl.program_id(0)
    total = sum_parts(partial, row, parts, tl.num_programs(0) * M, M, W)
    tl.store(block_of(sums, row * M, 0, M, W), total)
    tl.store(block_of(mixed, row * M, 0, M, W), dot(tl.load(block_of(core, row * M, 0, M, M)), total, "fp32"))


@triton.jit(do_not_specialize=["H", "tokens", "m", "chunk", "blocks", "scale"])
def forward_write(
    q, q_batch, q_token, marks, marks_batch, marks_token, out, out_batch, out_token, cu, cu_l, mixed, H, tokens, m,
    chunk, blocks, scale, D: tl.constexpr, W: tl.constexpr, M: tl.constexpr, T: tl.constexpr, VARLEN: tl.constexpr,
    DOT: tl.constexpr, ONE: tl.constexpr,
):
    """out = P Y of one chunk of tokens; ONE block of landmarks or several."""
    scale = tl.cast(scale, tl.float32)
    row, part = tl.program_id(0), tl.program_id(1)
    image, head = row // H, row % H
    q, n = head_of(q, q_batch, q_token, cu, image, head, tokens, D, VARLEN)
    out, _ = head_of(out, out_batch, out_token, cu, image, head, tokens, D, VARLEN)
    marks, count = head_of(marks, marks_batch, marks_token, cu_l, image, head, m, D, VARLEN)
    first, last = part * chunk, tl.minimum(part * chunk + chunk, n)
    if ONE:
        landmarks = load_rows(marks, 0, count, D, M, W)  # M W
        y = tl.load(block_of(mixed, row * M, 0, M, W))  # M W
        write_tokens(
            q, out, landmarks, half_square(landmarks, 1.0, DOT), y, first, last, scale, D, W, T, DOT
        )
    else:
        for t0 in range(first, last, T):
            qt = load_rows(q, t0, last, D, T, W)  # T W
            half_q = half_square(qt, scale, DOT)
            acc = tl.zeros((T, W), tl.float32)
            for block in range(blocks):
                landmarks = load_rows(marks, block * M, count, D, M, W)  # M W
                y = tl.load(block_of(mixed, tl.cast(row, tl.int64) * blocks * M, block * M, M, W))  # M W
                weights = gaussian(qt, landmarks, half_q, half_square(landmarks, 1.0, DOT), scale, DOT)
                acc += weights_by_matrix(weights, y, DOT)
            store_rows(out, acc, t0, last, D, T, W)
