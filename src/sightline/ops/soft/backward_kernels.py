"""Backward kernels of SOFT. With G = d(out), in the notation of `forward_kernels`:

    dY = P^T G      dZ = K^T dY      dv = P dZ      S = P * (G Y^T + v dZ^T)
    dq = S l - (S 1) q               dl = S^T q - (S^T 1) l + B l - (B 1) l

B comes from the matrix A between the landmarks. The gradient of its inverse, -K^T dK K^T with dK = dY Z^T, is -dZ Y^T:
no product of m x m matrices is left. With D = diag(s) between (SOFT++; s = 1 for SOFT):

    B = A * (C + C^T) off the diagonal,   C = -(s s'^T)^1/2 dZ Y^T + e 1^T,   e = -(dY . Y + dZ . Z) / 2s

dY is what `forward_sums` makes of G. Then dZ (`backward_mix`), a pass over the tokens (`backward_tokens`), which leaves
dl of every chunk, and their sum (`add_landmarks`). For short images the first and the last are part of the others.
"""

import triton
import triton.language as tl

from sightline.ops.common.tiles import dot, head_of, operand
from sightline.ops.soft.forward_kernels import block_of, sum_parts, sum_tokens
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


@triton.jit
def dl_of_tokens(
    q, v, g, dq, dv, mask, landmarks, half, y, dz, first, last, scale, D: tl.constexpr, W: tl.constexpr,
    M: tl.constexpr, T: tl.constexpr, MASKED: tl.constexpr, DOT: tl.constexpr, WRITE: tl.constexpr,
):
    """The part of dl that comes from the tokens first <= t < last; with WRITE also writes their dq and dv."""
    d_landmarks = tl.zeros((M, W), tl.float32)
    columns = tl.zeros((M, 16), tl.float32)
    ones = operand(tl.full((T, 16), 1.0, tl.float32), DOT)
    for t0 in range(first, last, T):
        qt = load_rows(q, t0, last, D, T, W)  # T W
        vt = load_rows(v, t0, last, D, T, W)  # T W
        gt = load_rows(g, t0, last, D, T, W)  # T W
        weights = gaussian(qt, landmarks, half_square(qt, scale, DOT), half, scale, DOT)  # T M
        if MASKED:
            ok = unmasked(mask, t0, last, T)[:, None]
            vt = tl.where(ok, vt, 0.0).to(v[0].dtype.element_ty)
        if WRITE:
            d_v = weights_by_matrix(weights, dz, DOT)
            if MASKED:
                d_v = tl.where(ok, d_v, 0.0)
            store_rows(dv, d_v, t0, last, D, T, W)
        d_score = tokens_by_matrix(gt, tl.trans(y), DOT, tl.zeros((T, M), tl.float32))
        d_score = weights * tokens_by_matrix(vt, tl.trans(dz), DOT, d_score)
        part = operand(d_score, DOT)
        if WRITE:
            d_q = dot(part, operand(landmarks, DOT), DOT) - tl.sum(d_score, 1)[:, None] * (qt.to(tl.float32) * scale)
            store_rows(dq, d_q * scale, t0, last, D, T, W)
        transposed = tl.trans(part)
        d_landmarks += dot(transposed, operand(qt, DOT), DOT)
        columns += dot(transposed, ones, DOT)
    return d_landmarks * scale - tl.sum(columns, 1)[:, None] / 16 * landmarks.to(tl.float32)


@triton.jit
def d_degrees(sums, products, NORMALIZED: tl.constexpr):
    """e (M,), the gradient of the row sums of A, from `products` = dY . Y + dZ . Z."""
    if NORMALIZED:
        return products / (tl.maximum(sums, 1.0) * -2.0)
    else:
        return tl.zeros_like(sums)


@triton.jit
def dl_of_blocks(a, b, matrix, y_a, dz_a, y_b, dz_b, root_a, root_b, e_a, e_b, first_a, first_b, M: tl.constexpr):
    """The part of dl of block a that comes from A between the blocks a and b."""
    i, j = first_a + tl.arange(0, M)[:, None], first_b + tl.arange(0, M)[None, :]
    both = dot(dz_a, tl.trans(y_b), "fp32") + dot(y_a, tl.trans(dz_b), "fp32")
    d_score = e_a[:, None] + e_b[None, :] - root_a[:, None] * root_b[None, :] * both
    d_score = tl.where(i == j, 0.0, matrix * d_score)
    return dot(d_score, b.to(tl.float32), "fp32") - tl.sum(d_score, 1)[:, None] * a.to(tl.float32)


@triton.jit
def dl_of_matrix(landmarks, m, y, dz, products, M: tl.constexpr, NORMALIZED: tl.constexpr, DOT: tl.constexpr):
    """The part of dl that comes from A, for at most M landmarks."""
    square = squares(landmarks, M, DOT)
    matrix = between(landmarks, landmarks, square, square, 0, 0, m, M, DOT)
    sums = tl.sum(matrix, 1)
    e = d_degrees(sums, products, NORMALIZED)
    root = tl.full((M,), 1.0, tl.float32)
    if NORMALIZED:
        root = tl.sqrt(sums)
    return dl_of_blocks(landmarks, landmarks, matrix, y, dz, y, dz, root, root, e, e, 0, 0, M)


@triton.jit(do_not_specialize=["H", "tokens", "m", "parts", "scale"])
def backward_mix(
    q, q_batch, q_token, marks, marks_batch, marks_token, g, g_batch, g_token, cu, cu_l, partial, sums, mixed, core,
    mixed_grad, dl_parts, H, tokens, m, parts, scale, D: tl.constexpr, W: tl.constexpr, M: tl.constexpr,
    T: tl.constexpr, NORMALIZED: tl.constexpr, VARLEN: tl.constexpr, DOT: tl.constexpr, WHOLE: tl.constexpr,
):
    """dZ, and the part of dl that comes from A; for at most 64 landmarks.

    dY is the sum of its parts; those of a WHOLE image are summed here.
    """
    scale = tl.cast(scale, tl.float32)
    row = tl.program_id(0)
    image, head = row // H, row % H
    marks, count = head_of(marks, marks_batch, marks_token, cu_l, image, head, m, D, VARLEN)
    landmarks = load_rows(marks, 0, count, D, M, W)  # M W
    half = half_square(landmarks, 1.0, DOT)
    if WHOLE:
        q, n = head_of(q, q_batch, q_token, cu, image, head, tokens, D, VARLEN)
        g, _ = head_of(g, g_batch, g_token, cu, image, head, tokens, D, VARLEN)
        dy = sum_tokens(q, g, g, landmarks, half, 0, n, scale, D, W, M, T, False, DOT)
    else:
        dy = sum_parts(partial, row, parts, tl.num_programs(0) * M, M, W)
    dz = dot(tl.trans(tl.load(block_of(core, row * M, 0, M, M))), dy, "fp32")
    tl.store(block_of(mixed_grad, row * M, 0, M, W), dz)
    y = tl.load(block_of(mixed, row * M, 0, M, W))  # M W
    products = tl.sum(dy * y + dz * tl.load(block_of(sums, row * M, 0, M, W)), 1)
    tl.store(block_of(dl_parts, row * M, 0, M, W), dl_of_matrix(landmarks, count, y, dz, products, M, NORMALIZED, DOT))


@triton.jit(do_not_specialize=["H", "tokens", "m", "chunk", "scale"])
def backward_tokens(
    q, q_batch, q_token, v, v_batch, v_token, marks, marks_batch, marks_token, g, g_batch, g_token, mask, cu, cu_l,
    mixed, mixed_grad, dq, dq_batch, dq_token, dv, dv_batch, dv_token, dl, dl_batch, dl_token, dl_parts, H, tokens, m,
    chunk, scale, D: tl.constexpr, W: tl.constexpr, M: tl.constexpr, T: tl.constexpr, MASKED: tl.constexpr,
    VARLEN: tl.constexpr, DOT: tl.constexpr, WHOLE: tl.constexpr,
):
    """dq and dv of one chunk, and its part of dl, or dl itself of a WHOLE image; at most 64 landmarks."""
    scale = tl.cast(scale, tl.float32)
    row, part = tl.program_id(0), tl.program_id(1)
    image, head = row // H, row % H
    q, n = head_of(q, q_batch, q_token, cu, image, head, tokens, D, VARLEN)
    v, _ = head_of(v, v_batch, v_token, cu, image, head, tokens, D, VARLEN)
    g, _ = head_of(g, g_batch, g_token, cu, image, head, tokens, D, VARLEN)
    dq, _ = head_of(dq, dq_batch, dq_token, cu, image, head, tokens, D, VARLEN)
    dv, _ = head_of(dv, dv_batch, dv_token, cu, image, head, tokens, D, VARLEN)
    marks, count = head_of(marks, marks_batch, marks_token, cu_l, image, head, m, D, VARLEN)
    if MASKED:
        mask += tl.cast(image, tl.int64) * tokens
    landmarks = load_rows(marks, 0, count, D, M, W)  # M W
    d_landmarks = dl_of_tokens(
        q, v, g, dq, dv, mask, landmarks, half_square(landmarks, 1.0, DOT), tl.load(block_of(mixed, row * M, 0, M, W)),
        tl.load(block_of(mixed_grad, row * M, 0, M, W)), part * chunk, tl.minimum(part * chunk + chunk, n), scale, D, W,
        M, T, MASKED, DOT, True,
    )
    if WHOLE:
        dl, _ = head_of(dl, dl_batch, dl_token, cu_l, image, head, m, D, VARLEN)
        store_rows(dl, d_landmarks + tl.load(block_of(dl_parts, row * M, 0, M, W)), 0, count, D, M, W)
    else:
        offset = (tl.cast(part + 1, tl.int64) * tl.num_programs(0) + row) * M
        tl.store(block_of(dl_parts, offset, 0, M, W), d_landmarks)


@triton.jit(do_not_specialize=["H", "m", "blocks", "parts"])
def add_landmarks(
    dl_parts, dl, dl_batch, dl_token, cu_l, H, m, blocks, parts, D: tl.constexpr, W: tl.constexpr, M: tl.constexpr,
    VARLEN: tl.constexpr,
):
    """dl, the sum of its parts."""
    row, block = tl.program_id(0), tl.program_id(1)
    dl, count = head_of(dl, dl_batch, dl_token, cu_l, row // H, row % H, m, D, VARLEN)
    base, stride = tl.cast(row, tl.int64) * blocks * M, tl.cast(tl.num_programs(0), tl.int64) * blocks * M
    total = tl.zeros((M, W), tl.float32)
    for part in range(parts):
        total += tl.load(block_of(dl_parts, part * stride + base, block * M, M, W))  # M W
    store_rows(dl, total, block * M, count, D, M, W)
