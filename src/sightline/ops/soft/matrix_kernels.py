"""Kernels for more than 64 landmarks: their matrix and its products in blocks of M, where one program cannot hold it.

Padded matrices as in `forward_kernels`: K is (images, heads, blocks * M, blocks * M). While A is inverted, matrices are
(images, heads, 2, blocks * M, blocks * M) in float16: a number is the sum of two, which take as many bytes as a
float32, have 22 bits, and are multiplied by three products at full speed of the tensor cores. Products are our own, as
an image's inverse must not depend on what else is in the batch: a library's batched product chooses its order of
summation by the number of matrices. All these matrices are symmetric up to rounding; computing one half and
mirroring it is as accurate for 20 steps, but wrong for 30.
"""

import triton
import triton.language as tl

from sightline.ops.common.tiles import dot, head_of, operand
from sightline.ops.soft.backward_kernels import d_degrees, dl_of_blocks, dl_of_tokens
from sightline.ops.soft.forward_kernels import block_of
from sightline.ops.soft.tiles import (
    between,
    gaussian,
    half_square,
    load_rows,
    squares,
    store_rows,
    tokens_by_matrix,
    unmasked,
    weights_by_matrix,
)

ONE = tl.constexpr(16384.0)  # what a one is in float16, whose numbers end at 65,504 and lose digits below 0.0001


@triton.jit
def store_pair(out, offset, size, value, ok):
    """Write float32 numbers as the sums of two float16."""
    upper = value.to(tl.float16)
    tl.store(out + offset, upper, mask=ok)
    tl.store(out + size * size + offset, (value - upper.to(tl.float32)).to(tl.float16), mask=ok)


@triton.jit(do_not_specialize=["H", "m", "blocks", "ridge"])
def matrix(
    marks, marks_batch, marks_token, cu_l, out, sums, H, m, blocks, ridge, D: tl.constexpr, W: tl.constexpr,
    M: tl.constexpr, VARLEN: tl.constexpr, DOT: tl.constexpr,
):
    """A block of rows of A + ridge I, ONE times and as pairs, and the row sums of A."""
    ridge = tl.cast(ridge, tl.float32)
    row, block = tl.program_id(0), tl.program_id(1)
    marks, count = head_of(marks, marks_batch, marks_token, cu_l, row // H, row % H, m, D, VARLEN)
    a = load_rows(marks, block * M, count, D, M, W)  # M W
    square = squares(a, M, DOT)
    size = blocks * M
    i, c = tl.arange(0, M)[:, None], tl.arange(0, M)[None, :]
    out += tl.cast(row, tl.int64) * 2 * size * size
    total = tl.zeros((M,), tl.float32)
    for other in range(blocks):
        b = load_rows(marks, other * M, count, D, M, W)  # M W
        values = between(a, b, square, squares(b, M, DOT), block * M, other * M, count, M, DOT)
        total += tl.sum(values, 1)
        own = (block * M + i == other * M + c) & (block * M + i < count)
        values = tl.where(own, values + ridge, values) * ONE
        store_pair(out, (block * M + i) * size + other * M + c, size, values, True)
    tl.store(sums + tl.cast(row, tl.int64) * size + block * M + tl.arange(0, M), total)


@triton.jit(do_not_specialize=["parts", "blocks"])
def add_chunks(partial, sums, parts, blocks, W: tl.constexpr, M: tl.constexpr):
    """One block of Z, the sum of its parts."""
    row, block = tl.program_id(0), tl.program_id(1)
    base, stride = tl.cast(row, tl.int64) * blocks * M, tl.cast(tl.num_programs(0), tl.int64) * blocks * M
    total = tl.zeros((M, W), tl.float32)
    for part in range(parts):
        total += tl.load(block_of(partial, part * stride + base, block * M, M, W))  # M W
    tl.store(block_of(sums, base, block * M, M, W), total)


@triton.jit
def iterate_scale(step, norm, factor):
    """What Newton's iterate X / u is multiplied by, a power of two; u = factor / norm^2, and X = u A before step 0.

    A step at most doubles the eigenvalues of X, and after k steps they are at most (2^k u)^(1/2) / u: the elements are
    below 2 ONE.
    """
    k = tl.cast(step, tl.float32)  # a number, or a constant if it is 1 in a graph of torch.compile
    most = tl.minimum(tl.exp2(k), tl.maximum(tl.exp2(0.5 * k) * norm * tl.rsqrt(factor), 1.0))
    return ONE * tl.exp2(-tl.ceil(tl.log2(most)))


@triton.jit(do_not_specialize=["blocks", "factor", "step"])
def newton_product(
    a, b, out, degrees, blocks, factor, step, P: tl.constexpr, K: tl.constexpr, MOST: tl.constexpr, KIND: tl.constexpr
):
    """A tile of a product of two matrices as pairs: half of a step of Newton.

    KIND "error": E = I - u X A of a = X / u and b = A. Of a = E and b = X / u, "step": X / u + E X / u, "last": u times
    that in float32, "scaled": that between D^-1/2. `degrees` are the row sums D of A, and u = factor / ||A||_1^2.
    """
    factor = tl.cast(factor, tl.float32)
    size = blocks * K
    tiles = tl.cdiv(size, P)
    row, tile = tl.program_id(0) // (tiles * tiles), tl.program_id(0) % (tiles * tiles)
    a += tl.cast(row, tl.int64) * 2 * size * size
    b += tl.cast(row, tl.int64) * 2 * size * size
    degrees += tl.cast(row, tl.int64) * size
    every = tl.arange(0, MOST)
    norm = tl.max(tl.load(degrees + every, mask=every < size, other=0.0), 0)
    i, j, k = tile // tiles * P + tl.arange(0, P), tile % tiles * P + tl.arange(0, P), tl.arange(0, K)
    a_offset, b_offset = i[:, None] * size + k[None, :], k[:, None] * size + j[None, :]
    a_ok, b_ok = (i < size)[:, None], (j < size)[None, :]
    acc = tl.zeros((P, P), tl.float32)
    for first in range(0, size, K):
        a_upper = tl.load(a + first + a_offset, mask=a_ok, other=0.0)  # P K
        a_lower = tl.load(a + size * size + first + a_offset, mask=a_ok, other=0.0)  # P K
        b_upper = tl.load(b + first * size + b_offset, mask=b_ok, other=0.0)  # K P
        b_lower = tl.load(b + size * size + first * size + b_offset, mask=b_ok, other=0.0)  # K P
        part = tl.dot(a_lower, b_upper, out_dtype=tl.float32)
        part = tl.dot(a_upper, b_lower, part, out_dtype=tl.float32)
        acc += tl.dot(a_upper, b_upper, part, out_dtype=tl.float32)
    unit = factor / (norm * norm)
    scale = iterate_scale(step, norm, factor)
    offset, ok = i[:, None] * size + j[None, :], a_ok & b_ok
    acc *= 1.0 / (ONE * scale)
    if KIND == "error":
        acc = tl.where(i[:, None] == j[None, :], 1.0, 0.0) - unit * acc
    else:
        x = tl.load(b + offset, mask=ok, other=0.0).to(tl.float32)
        acc += (x + tl.load(b + size * size + offset, mask=ok, other=0.0).to(tl.float32)) / scale
    if KIND == "error" or KIND == "step":
        out += tl.cast(row, tl.int64) * 2 * size * size
        store_pair(out, offset, size, acc * (ONE if KIND == "error" else iterate_scale(step + 1, norm, factor)), ok)
    else:
        acc *= unit
        if KIND == "scaled":
            down = tl.maximum(tl.load(degrees + i, mask=i < size, other=1.0), 1.0)
            across = tl.maximum(tl.load(degrees + j, mask=j < size, other=1.0), 1.0)
            acc *= tl.rsqrt(down)[:, None] * tl.rsqrt(across)[None, :]
        tl.store(out + tl.cast(row, tl.int64) * size * size + offset, acc, mask=ok)


@triton.jit(do_not_specialize=["size", "columns"])
def multiply(a, b, out, size, columns, M: tl.constexpr, P: tl.constexpr, K: tl.constexpr):
    """A tile of a product of a symmetric (size, size) and (size, columns), both float32."""
    row, block, column = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    a += tl.cast(row, tl.int64) * size * size
    b += tl.cast(row, tl.int64) * size * columns
    i, j, k = block * M + tl.arange(0, M), column * P + tl.arange(0, P), tl.arange(0, K)
    acc = tl.zeros((M, P), tl.float32)
    for first in range(0, size, K):
        left = tl.load(a + i[:, None] * size + (first + k)[None, :])  # M K
        right = tl.load(b + (first + k)[:, None] * columns + j[None, :])  # K P
        acc = dot(left, right, "fp32", acc)
    tl.store(out + tl.cast(row, tl.int64) * size * columns + i[:, None] * columns + j[None, :], acc)


@triton.jit(do_not_specialize=["H", "tokens", "m", "chunk", "blocks", "scale"])
def backward_queries(
    q, q_batch, q_token, v, v_batch, v_token, marks, marks_batch, marks_token, g, g_batch, g_token, mask, cu, cu_l,
    mixed, mixed_grad, dq, dq_batch, dq_token, dv, dv_batch, dv_token, H, tokens, m, chunk, blocks, scale,
    D: tl.constexpr, W: tl.constexpr, M: tl.constexpr, T: tl.constexpr, MASKED: tl.constexpr, VARLEN: tl.constexpr,
    DOT: tl.constexpr,
):
    """dq and dv of one chunk, over all blocks of landmarks."""
    scale = tl.cast(scale, tl.float32)
    row, part = tl.program_id(0), tl.program_id(1)
    image, head = row // H, row % H
    q, n = head_of(q, q_batch, q_token, cu, image, head, tokens, D, VARLEN)
    v, _ = head_of(v, v_batch, v_token, cu, image, head, tokens, D, VARLEN)
    g, _ = head_of(g, g_batch, g_token, cu, image, head, tokens, D, VARLEN)
    dq, _ = head_of(dq, dq_batch, dq_token, cu, image, head, tokens, D, VARLEN)
    dv, _ = head_of(dv, dv_batch, dv_token, cu, image, head, tokens, D, VARLEN)
    marks, count = head_of(marks, marks_batch, marks_token, cu_l, image, head, m, D, VARLEN)
    last = tl.minimum(part * chunk + chunk, n)
    if MASKED:
        mask += tl.cast(image, tl.int64) * tokens
    base = tl.cast(row, tl.int64) * blocks * M
    for t0 in range(part * chunk, last, T):
        qt = load_rows(q, t0, last, D, T, W)  # T W
        vt = load_rows(v, t0, last, D, T, W)  # T W
        gt = load_rows(g, t0, last, D, T, W)  # T W
        if MASKED:
            vt = tl.where(unmasked(mask, t0, last, T)[:, None], vt, 0.0).to(v[0].dtype.element_ty)
        half_q = half_square(qt, scale, DOT)
        d_q = tl.zeros((T, W), tl.float32)
        d_v = tl.zeros((T, W), tl.float32)
        total = tl.zeros((T,), tl.float32)
        for block in range(blocks):
            landmarks = load_rows(marks, block * M, count, D, M, W)  # M W
            y = tl.load(block_of(mixed, base, block * M, M, W))  # M W
            dz = tl.load(block_of(mixed_grad, base, block * M, M, W))  # M W
            weights = gaussian(qt, landmarks, half_q, half_square(landmarks, 1.0, DOT), scale, DOT)
            d_v += weights_by_matrix(weights, dz, DOT)
            d_score = tokens_by_matrix(gt, tl.trans(y), DOT, tl.zeros((T, M), tl.float32))
            d_score = weights * tokens_by_matrix(vt, tl.trans(dz), DOT, d_score)
            d_q += dot(operand(d_score, DOT), operand(landmarks, DOT), DOT)
            total += tl.sum(d_score, 1)
        if MASKED:
            d_v = tl.where(unmasked(mask, t0, last, T)[:, None], d_v, 0.0)
        store_rows(dv, d_v, t0, last, D, T, W)
        store_rows(dq, (d_q - total[:, None] * (qt.to(tl.float32) * scale)) * scale, t0, last, D, T, W)


@triton.jit(do_not_specialize=["H", "tokens", "m", "chunk", "blocks", "scale"])
def backward_landmarks(
    q, q_batch, q_token, v, v_batch, v_token, marks, marks_batch, marks_token, g, g_batch, g_token, mask, cu, cu_l,
    mixed, mixed_grad, dl_parts, H, tokens, m, chunk, blocks, scale, D: tl.constexpr, W: tl.constexpr, M: tl.constexpr,
    T: tl.constexpr, MASKED: tl.constexpr, VARLEN: tl.constexpr, DOT: tl.constexpr,
):
    """The part of dl of one block of landmarks that comes from one chunk of tokens."""
    scale = tl.cast(scale, tl.float32)
    row, piece = tl.program_id(0), tl.program_id(1)
    image, head, part, block = row // H, row % H, piece // blocks, piece % blocks
    q, n = head_of(q, q_batch, q_token, cu, image, head, tokens, D, VARLEN)
    v, _ = head_of(v, v_batch, v_token, cu, image, head, tokens, D, VARLEN)
    g, _ = head_of(g, g_batch, g_token, cu, image, head, tokens, D, VARLEN)
    marks, count = head_of(marks, marks_batch, marks_token, cu_l, image, head, m, D, VARLEN)
    if MASKED:
        mask += tl.cast(image, tl.int64) * tokens
    landmarks = load_rows(marks, block * M, count, D, M, W)  # M W
    base = tl.cast(row, tl.int64) * blocks * M
    d_landmarks = dl_of_tokens(
        q, v, g, q, v, mask, landmarks, half_square(landmarks, 1.0, DOT), tl.load(block_of(mixed, base, block * M, M,
        W)), tl.load(block_of(mixed_grad, base, block * M, M, W)), part * chunk, tl.minimum(part * chunk + chunk, n),
        scale, D, W, M, T, MASKED, DOT, False,
    )
    offset = (tl.cast(part + 1, tl.int64) * tl.num_programs(0) + row) * blocks * M
    tl.store(block_of(dl_parts, offset, block * M, M, W), d_landmarks)


@triton.jit(do_not_specialize=["H", "m", "blocks"])
def backward_matrix(
    marks, marks_batch, marks_token, cu_l, degrees, sums, sums_grad, mixed, mixed_grad, dl_parts, H, m, blocks,
    D: tl.constexpr, W: tl.constexpr, M: tl.constexpr, NORMALIZED: tl.constexpr, VARLEN: tl.constexpr,
    DOT: tl.constexpr,
):
    """The part of dl of one block of landmarks that comes from A; `degrees` are its row sums, `sums_grad` is dY."""
    row, block = tl.program_id(0), tl.program_id(1)
    marks, count = head_of(marks, marks_batch, marks_token, cu_l, row // H, row % H, m, D, VARLEN)
    base = tl.cast(row, tl.int64) * blocks * M
    a = load_rows(marks, block * M, count, D, M, W)  # M W
    square = squares(a, M, DOT)
    y_a, dz_a, root_a, e_a = _load_block(degrees, sums, sums_grad, mixed, mixed_grad, base, block, W, M, NORMALIZED)
    total = tl.zeros((M, W), tl.float32)
    for other in range(blocks):
        b = load_rows(marks, other * M, count, D, M, W)  # M W
        y_b, dz_b, root_b, e_b = _load_block(degrees, sums, sums_grad, mixed, mixed_grad, base, other, W, M, NORMALIZED)
        values = between(a, b, square, squares(b, M, DOT), block * M, other * M, count, M, DOT)
        total += dl_of_blocks(
            a, b, values, y_a, dz_a, y_b, dz_b, root_a, root_b, e_a, e_b, block * M, other * M, M
        )
    tl.store(block_of(dl_parts, base, block * M, M, W), total)


@triton.jit
def _load_block(
    degrees, sums, sums_grad, mixed, mixed_grad, base, block, W: tl.constexpr, M: tl.constexpr,
    NORMALIZED: tl.constexpr,
):
    """Y, dZ, the root of the degrees and e of a block of landmarks."""
    y = tl.load(block_of(mixed, base, block * M, M, W))  # M W
    dz = tl.load(block_of(mixed_grad, base, block * M, M, W))  # M W
    degree = tl.load(degrees + base + block * M + tl.arange(0, M))  # M
    root = tl.full((M,), 1.0, tl.float32)
    if NORMALIZED:
        root = tl.sqrt(degree)
    z = tl.load(block_of(sums, base, block * M, M, W))  # M W
    dy = tl.load(block_of(sums_grad, base, block * M, M, W))  # M W
    return y, dz, root, d_degrees(degree, tl.sum(dy * y + dz * z, 1), NORMALIZED)
