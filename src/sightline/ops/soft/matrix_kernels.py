"""Kernels for more than 64 landmarks: their matrix and its products in blocks of M, where one program cannot hold it.

Padded matrices as in `forward_kernels`: K and A are (images, heads, blocks * M, blocks * M). Products split float32
numbers for the tensor cores (tf32x3), as an image's inverse must not depend on what else is in the batch: a library's
batched product chooses its order of summation by the number of matrices.
"""

import triton
import triton.language as tl

from sightline.ops.fused.tiles import dot, operand
from sightline.ops.soft.backward_kernels import degree_pull, pull_landmarks, pull_tokens
from sightline.ops.soft.forward_kernels import small
from sightline.ops.soft.tiles import (
    between,
    gaussian,
    half_square,
    head_of,
    rows,
    shown,
    squares,
    store_rows,
    times_small,
    tokens_times,
)


@triton.jit(do_not_specialize=["H", "m", "blocks", "ridge"])
def matrix(
    marks, cu_l, out, sums, l_sb, l_sn, l_sh, l_sd, H, m, blocks, ridge, D: tl.constexpr, W: tl.constexpr,
    M: tl.constexpr, VARLEN: tl.constexpr, DOT: tl.constexpr,
):
    """A block of rows of A + ridge I, and the row sums of A."""
    row, block = tl.program_id(0), tl.program_id(1)
    marks, count = head_of(marks, cu_l, row // H, row % H, m, l_sb, l_sn, l_sh, VARLEN)
    a = rows(marks, block * M, count, l_sn, l_sd, D, M, W)
    square = squares(a, M, DOT)
    size = blocks * M
    i, c = tl.arange(0, M)[:, None], tl.arange(0, M)[None, :]
    out += (tl.cast(row, tl.int64) * size + block * M) * size
    total = tl.zeros((M,), tl.float32)
    for other in range(blocks):
        b = rows(marks, other * M, count, l_sn, l_sd, D, M, W)
        values = between(a, b, square, squares(b, M, DOT), block * M, other * M, count, M, DOT)
        total += tl.sum(values, 1)
        own = (block * M + i == other * M + c) & (block * M + i < count)
        tl.store(out + i * size + other * M + c, tl.where(own, values + ridge, values))
    tl.store(sums + tl.cast(row, tl.int64) * size + block * M + tl.arange(0, M), total)


@triton.jit(do_not_specialize=["parts", "blocks"])
def add_chunks(partial, sums, parts, blocks, W: tl.constexpr, M: tl.constexpr):
    """One block of Z, the sum of its parts."""
    row, block = tl.program_id(0), tl.program_id(1)
    base, stride = tl.cast(row, tl.int64) * blocks * M, tl.cast(tl.num_programs(0), tl.int64) * blocks * M
    total = tl.zeros((M, W), tl.float32)
    for part in range(parts):
        total += tl.load(small(partial, part * stride + base, block * M, M, W))
    tl.store(small(sums, base, block * M, M, W), total)


@triton.jit(do_not_specialize=["size", "columns", "factor"])
def multiply(
    a, b, out, degrees, size, columns, factor, M: tl.constexpr, P: tl.constexpr, K: tl.constexpr, KIND: tl.constexpr,
    TURN: tl.constexpr,
):
    """A tile of a product of (size, size) and (size, columns); TURN transposes a.

    KIND "plain": a b, "error": I - u a b, "step": b + a b, "last": u (b + a b), "scaled": that between D^-1/2.
    `degrees` are the row sums D of A, and u = factor / ||A||_1^2.
    """
    ROUND: tl.constexpr = KIND == "last" or KIND == "scaled"
    row, block, column = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    a += tl.cast(row, tl.int64) * size * size
    b += tl.cast(row, tl.int64) * size * columns
    i, j, k = block * M + tl.arange(0, M), column * P + tl.arange(0, P), tl.arange(0, K)
    acc = tl.zeros((M, P), tl.float32)
    norm = tl.zeros((K,), tl.float32)
    for first in range(0, size, K):
        if KIND == "error" or ROUND:
            norm = tl.maximum(norm, tl.load(degrees + tl.cast(row, tl.int64) * size + first + k))
        if TURN:
            left = tl.trans(tl.load(a + (first + k)[:, None] * size + i[None, :]))
        else:
            left = tl.load(a + i[:, None] * size + (first + k)[None, :])
        right = tl.load(b + (first + k)[:, None] * columns + j[None, :])
        acc = dot(left, right, "fp32", acc)
    place = i[:, None] * columns + j[None, :]
    unit = factor / (tl.max(norm, 0) * tl.max(norm, 0))
    if KIND == "error":
        acc = tl.where(i[:, None] == j[None, :], 1.0, 0.0) - unit * acc
    elif KIND == "step" or ROUND:
        acc += tl.load(b + place)
    if ROUND:
        acc *= unit
    if KIND == "scaled":
        degrees += tl.cast(row, tl.int64) * size
        down, across = tl.maximum(tl.load(degrees + i), 1.0), tl.maximum(tl.load(degrees + j), 1.0)
        acc *= tl.rsqrt(down)[:, None] * tl.rsqrt(across)[None, :]
    tl.store(out + tl.cast(row, tl.int64) * size * columns + place, acc)


@triton.jit(do_not_specialize=["H", "tokens", "m", "chunk", "blocks", "scale"])
def backward_queries(
    q, v, marks, g, mask, cu, cu_l, mixed, mixed_grad, dq, dv, q_sb, q_sn, q_sh, q_sd, v_sb, v_sn, v_sh, v_sd, l_sb,
    l_sn, l_sh, l_sd, g_sb, g_sn, g_sh, g_sd, dq_sb, dq_sn, dq_sh, dv_sb, dv_sn, dv_sh, H, tokens, m, chunk, blocks,
    scale, D: tl.constexpr, W: tl.constexpr, M: tl.constexpr, T: tl.constexpr, MASKED: tl.constexpr,
    VARLEN: tl.constexpr, DOT: tl.constexpr,
):
    """dq and dv of one chunk, over all blocks of landmarks."""
    row, part = tl.program_id(0), tl.program_id(1)
    image, head = row // H, row % H
    q, n = head_of(q, cu, image, head, tokens, q_sb, q_sn, q_sh, VARLEN)
    v, _ = head_of(v, cu, image, head, tokens, v_sb, v_sn, v_sh, VARLEN)
    g, _ = head_of(g, cu, image, head, tokens, g_sb, g_sn, g_sh, VARLEN)
    dq, _ = head_of(dq, cu, image, head, tokens, dq_sb, dq_sn, dq_sh, VARLEN)
    dv, _ = head_of(dv, cu, image, head, tokens, dv_sb, dv_sn, dv_sh, VARLEN)
    marks, count = head_of(marks, cu_l, image, head, m, l_sb, l_sn, l_sh, VARLEN)
    last = tl.minimum(part * chunk + chunk, n)
    if MASKED:
        mask += tl.cast(image, tl.int64) * tokens
    base = tl.cast(row, tl.int64) * blocks * M
    for t0 in range(part * chunk, last, T):
        qt = rows(q, t0, last, q_sn, q_sd, D, T, W)
        vt = rows(v, t0, last, v_sn, v_sd, D, T, W)
        gt = rows(g, t0, last, g_sn, g_sd, D, T, W)
        if MASKED:
            vt = tl.where(shown(mask, t0, last, T)[:, None], vt, 0.0).to(v.dtype.element_ty)
        half_q = half_square(qt, scale, DOT)
        d_q = tl.zeros((T, W), tl.float32)
        d_v = tl.zeros((T, W), tl.float32)
        total = tl.zeros((T,), tl.float32)
        for block in range(blocks):
            landmarks = rows(marks, block * M, count, l_sn, l_sd, D, M, W)
            y = tl.load(small(mixed, base, block * M, M, W))
            dz = tl.load(small(mixed_grad, base, block * M, M, W))
            weights = gaussian(qt, landmarks, half_q, half_square(landmarks, 1.0, DOT), scale, DOT)
            d_v += times_small(weights, dz, DOT)
            pull = tokens_times(gt, tl.trans(y), DOT, tl.zeros((T, M), tl.float32))
            pull = weights * tokens_times(vt, tl.trans(dz), DOT, pull)
            d_q += dot(operand(pull, DOT), operand(landmarks, DOT), DOT)
            total += tl.sum(pull, 1)
        if MASKED:
            d_v = tl.where(shown(mask, t0, last, T)[:, None], d_v, 0.0)
        store_rows(dv, d_v, t0, last, dv_sn, D, T, W)
        store_rows(dq, (d_q - total[:, None] * (qt.to(tl.float32) * scale)) * scale, t0, last, dq_sn, D, T, W)


@triton.jit(do_not_specialize=["H", "tokens", "m", "chunk", "blocks", "scale"])
def backward_landmarks(
    q, v, marks, g, mask, cu, cu_l, mixed, mixed_grad, edges, q_sb, q_sn, q_sh, q_sd, v_sb, v_sn, v_sh, v_sd, l_sb,
    l_sn, l_sh, l_sd, g_sb, g_sn, g_sh, g_sd, H, tokens, m, chunk, blocks, scale, D: tl.constexpr, W: tl.constexpr,
    M: tl.constexpr, T: tl.constexpr, MASKED: tl.constexpr, VARLEN: tl.constexpr, DOT: tl.constexpr,
):
    """The part of dl of one block of landmarks that comes from one chunk of tokens."""
    row, piece = tl.program_id(0), tl.program_id(1)
    image, head, part, block = row // H, row % H, piece // blocks, piece % blocks
    q, n = head_of(q, cu, image, head, tokens, q_sb, q_sn, q_sh, VARLEN)
    v, _ = head_of(v, cu, image, head, tokens, v_sb, v_sn, v_sh, VARLEN)
    g, _ = head_of(g, cu, image, head, tokens, g_sb, g_sn, g_sh, VARLEN)
    marks, count = head_of(marks, cu_l, image, head, m, l_sb, l_sn, l_sh, VARLEN)
    if MASKED:
        mask += tl.cast(image, tl.int64) * tokens
    landmarks = rows(marks, block * M, count, l_sn, l_sd, D, M, W)
    base = tl.cast(row, tl.int64) * blocks * M
    d_landmarks = pull_tokens(
        q, v, g, q, v, mask, landmarks, half_square(landmarks, 1.0, DOT), tl.load(small(mixed, base, block * M, M, W)),
        tl.load(small(mixed_grad, base, block * M, M, W)), q_sn, q_sd, v_sn, v_sd, g_sn, g_sd, 0, 0, part * chunk,
        tl.minimum(part * chunk + chunk, n), scale, D, W, M, T, MASKED, DOT, False,
    )
    place = (tl.cast(part + 1, tl.int64) * tl.num_programs(0) + row) * blocks * M
    tl.store(small(edges, place, block * M, M, W), d_landmarks)


@triton.jit(do_not_specialize=["H", "m", "blocks"])
def backward_matrix(
    marks, cu_l, degrees, sums, sums_grad, mixed, mixed_grad, edges, l_sb, l_sn, l_sh, l_sd, H, m, blocks,
    D: tl.constexpr, W: tl.constexpr, M: tl.constexpr, NORMALIZED: tl.constexpr, VARLEN: tl.constexpr,
    DOT: tl.constexpr,
):
    """The part of dl of one block of landmarks that comes from A; `degrees` are its row sums, `sums_grad` is dY."""
    row, block = tl.program_id(0), tl.program_id(1)
    marks, count = head_of(marks, cu_l, row // H, row % H, m, l_sb, l_sn, l_sh, VARLEN)
    base = tl.cast(row, tl.int64) * blocks * M
    a = rows(marks, block * M, count, l_sn, l_sd, D, M, W)
    square = squares(a, M, DOT)
    y_a, dz_a, root_a, e_a = _pulls(degrees, sums, sums_grad, mixed, mixed_grad, base, block, W, M, NORMALIZED)
    total = tl.zeros((M, W), tl.float32)
    for other in range(blocks):
        b = rows(marks, other * M, count, l_sn, l_sd, D, M, W)
        y_b, dz_b, root_b, e_b = _pulls(degrees, sums, sums_grad, mixed, mixed_grad, base, other, W, M, NORMALIZED)
        values = between(a, b, square, squares(b, M, DOT), block * M, other * M, count, M, DOT)
        total += pull_landmarks(
            a, b, values, y_a, dz_a, y_b, dz_b, root_a, root_b, e_a, e_b, block * M, other * M, M
        )
    tl.store(small(edges, base, block * M, M, W), total)


@triton.jit
def _pulls(
    degrees, sums, sums_grad, mixed, mixed_grad, base, block, W: tl.constexpr, M: tl.constexpr,
    NORMALIZED: tl.constexpr,
):
    """Y, dZ, the root of the degrees and e of a block of landmarks."""
    y = tl.load(small(mixed, base, block * M, M, W))
    dz = tl.load(small(mixed_grad, base, block * M, M, W))
    degree = tl.load(degrees + base + block * M + tl.arange(0, M))
    root = tl.full((M,), 1.0, tl.float32)
    if NORMALIZED:
        root = tl.sqrt(degree)
    z = tl.load(small(sums, base, block * M, M, W))
    dy = tl.load(small(sums_grad, base, block * M, M, W))
    return y, dz, root, degree_pull(degree, tl.sum(dy * y + dz * z, 1), NORMALIZED)
