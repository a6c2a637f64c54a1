"""Shared by the kernels of SOFT: Gaussian weights of a tile, products, and the inverse on chip.

Letters: T tokens of a tile, M landmarks of a block, W channels (the head dim D up to a power of two).

Gaussian weights are made in float32 as exp2 of c (q . l) - c |q|^2 / 2 - c |l|^2 / 2, c = log2(e), cut off at zero, so
that a distance is never negative; between landmarks from squares that are summed like their products, so that equal
ones are at distance zero. Products of two bfloat16 tensors are exact. A weight that meets a bfloat16 tensor, or a small
float32 one, is split into two bfloat16 numbers: the inverse between the landmarks amplifies what rounding leaves in the
weights, and 16 bits of them are enough.
"""

import triton
import triton.language as tl

from sightline.ops.common.tiles import LOG2E, dot, operand


@triton.jit
def load_rows(x, first, last, D: tl.constexpr, T: tl.constexpr, W: tl.constexpr):
    """The tokens first, first + 1, ... of a head as (T, W); zero from `last` on and beyond the head dim."""
    t, c = tl.arange(0, T)[:, None], tl.arange(0, W)[None, :]
    ok = first + t < last
    if D < W:
        ok = ok & (c < D)
    return tl.load(x[0] + tl.cast(first, tl.int64) * x[1] + (t * x[1] + c), mask=ok, other=0)


@triton.jit
def store_rows(x, value, first, last, D: tl.constexpr, T: tl.constexpr, W: tl.constexpr):
    """Write (T, W) where `load_rows` reads, for contiguous channels."""
    t, c = tl.arange(0, T)[:, None], tl.arange(0, W)[None, :]
    ok = first + t < last
    if D < W:
        ok = ok & (c < D)
    pointers = x[0] + tl.cast(first, tl.int64) * x[1] + (t * x[1] + c)
    tl.store(pointers, value.to(x[0].dtype.element_ty), mask=ok)


@triton.jit
def unmasked(mask, first, last, T: tl.constexpr):
    """Which of the tokens first, first + 1, ... count as keys."""
    t = first + tl.arange(0, T)
    return tl.load(mask + t, mask=t < last, other=0) != 0


@triton.jit
def as_multiplied(x, DOT: tl.constexpr):
    """x as products take it: float32 is rounded to TF32's ten bits, so that products and squares are of one number."""
    if DOT == "tf32" and x.dtype == tl.float32:
        return ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    else:
        return x


@triton.jit
def half_square(x, scale, DOT: tl.constexpr):
    """c |scale x|^2 / 2 of every row."""
    x = as_multiplied(x, DOT).to(tl.float32) * scale
    return tl.sum(x * x, 1) * (0.5 * LOG2E)


@triton.jit
def gaussian(a, b, half_a, half_b, scale, DOT: tl.constexpr):
    """exp(-|a_i - b_j|^2 / 2) of the rows of a and b, one of them yet to be multiplied by `scale`."""
    a, b = as_multiplied(a, DOT), as_multiplied(b, DOT)
    score = dot(operand(a, DOT), tl.trans(operand(b, DOT)), DOT) * (scale * LOG2E)
    return tl.exp2(tl.minimum(score - half_a[:, None] - half_b[None, :], 0.0))


@triton.jit
def upper(x):
    return x.to(tl.bfloat16)


@triton.jit
def lower(x):
    """What `upper` leaves of a float32 number, to 8 more bits."""
    return (x - x.to(tl.bfloat16).to(tl.float32)).to(tl.bfloat16)


@triton.jit
def weights_by_tokens(p, x, DOT: tl.constexpr, acc):
    """acc + p x for float32 weights p and tokens x."""
    if DOT == "bf16":
        acc = tl.dot(lower(p), x, acc, out_dtype=tl.float32)
        return tl.dot(upper(p), x, acc, out_dtype=tl.float32)
    else:
        return dot(p, operand(x, DOT), DOT, acc)


@triton.jit
def weights_by_matrix(p, y, DOT: tl.constexpr):
    """p y for float32 weights p and a float32 matrix y."""
    if DOT == "bf16":
        acc = tl.dot(lower(p), upper(y), out_dtype=tl.float32)
        acc = tl.dot(upper(p), lower(y), acc, out_dtype=tl.float32)
        return tl.dot(upper(p), upper(y), acc, out_dtype=tl.float32)
    else:
        return dot(p, y, DOT)


@triton.jit
def tokens_by_matrix(x, y, DOT: tl.constexpr, acc):
    """acc + x y for tokens x and a float32 matrix y."""
    if DOT == "bf16":
        acc = tl.dot(x, lower(y), acc, out_dtype=tl.float32)
        return tl.dot(x, upper(y), acc, out_dtype=tl.float32)
    else:
        return dot(operand(x, DOT), y, DOT, acc)


@triton.jit
def _gram(a, b, DOT: tl.constexpr):
    """Products between landmarks, with all digits of float32."""
    if a.dtype == tl.float32:
        return dot(a, tl.trans(b), "fp32")
    else:
        return dot(operand(a, DOT), tl.trans(operand(b, DOT)), DOT)


@triton.jit
def squares(x, M: tl.constexpr, DOT: tl.constexpr):
    """|x_i|^2 of a block of landmarks, summed as the products of `between` are."""
    i = tl.arange(0, M)
    product = _gram(x, x, DOT)
    return tl.sum(tl.where(i[:, None] == i[None, :], product, 0.0), 1)


@triton.jit
def between(a, b, square_a, square_b, first_a, first_b, m, M: tl.constexpr, DOT: tl.constexpr):
    """A between two blocks of landmarks (M, M): exactly one on the diagonal, zero beyond the m landmarks."""
    i, j = first_a + tl.arange(0, M)[:, None], first_b + tl.arange(0, M)[None, :]
    product = _gram(a, b, DOT)
    distance = tl.maximum(square_a[:, None] + square_b[None, :] - 2.0 * product, 0.0)
    values = tl.where(i == j, 1.0, tl.exp2(distance * (-0.5 * LOG2E)))
    return tl.where((i < m) & (j < m), values, 0.0)


@triton.jit
def _split_product(a, b):
    """a b; float32 numbers as two float16 each, three products: 22 bits."""
    a_hi, b_hi = a.to(tl.float16), b.to(tl.float16)
    a_lo, b_lo = (a - a_hi.to(tl.float32)).to(tl.float16), (b - b_hi.to(tl.float32)).to(tl.float16)
    acc = tl.dot(a_lo, b_hi, out_dtype=tl.float32)
    acc = tl.dot(a_hi, b_lo, acc, out_dtype=tl.float32)
    return tl.dot(a_hi, b_hi, acc, out_dtype=tl.float32)


@triton.jit
def newton(matrix, norm, factor, steps, shrink, M: tl.constexpr):
    """The inverse of a symmetric (M, M), M <= 64, by Newton-Raphson from X = factor / norm^2 A: X <- X + (I - X A) X.

    The factors of a product are scaled to make use of float16's range, up to 65,504, where small numbers lose digits. A
    and I - X A have elements up to about one. X grows from factor / norm^2 A, whose diagonal is factor / norm^2, to at
    most 0.64 (2^steps factor)^(1/2) / norm; it is kept as grow X, which is below 32,000 with shrink = 1 up to 20 steps
    and 1 / 2 for every two steps more.
    """
    i = tl.arange(0, M)
    eye = tl.where(i[:, None] == i[None, :], 1.0, 0.0)
    grow = shrink * 64.0 * norm / factor
    large = matrix * 1024.0
    x = matrix * (shrink * 64.0 / norm)
    for _ in range(steps):
        error = eye - _split_product(x, large) / (grow * 1024.0)
        x += _split_product(error * 1024.0, x) * (1.0 / 1024.0)
    return x / grow


@triton.jit
def landmark_inverse(
    landmarks, m, factor, ridge, steps, shrink, M: tl.constexpr, NORMALIZED: tl.constexpr, DOT: tl.constexpr
):
    """A^+ between m <= M landmarks, or D^-1/2 A^+ D^-1/2; zero beyond them."""
    square = squares(landmarks, M, DOT)
    matrix = between(landmarks, landmarks, square, square, 0, 0, m, M, DOT)
    sums = tl.sum(matrix, 1)
    norm = tl.max(sums, 0)
    i = tl.arange(0, M)
    if NORMALIZED:
        inverse = newton(matrix, norm, factor, steps, shrink, M)
        root = tl.where(i < m, tl.rsqrt(tl.maximum(sums, 1.0)), 0.0)  # a sum holds the diagonal's one
        inverse = inverse * root[:, None] * root[None, :]
    else:
        diagonal = (i[:, None] == i[None, :]) & (i < m)[:, None]
        inverse = newton(tl.where(diagonal, matrix + ridge, matrix), norm, factor, steps, shrink, M)
    return inverse
