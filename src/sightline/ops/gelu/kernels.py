"""The gradient of GELU and the sums over its rows, in one pass."""

import triton
import triton.language as tl


@triton.jit
def _slope(x, TANH: tl.constexpr):
    """The derivative of GELU, or of its approximation by tanh."""
    if TANH:
        s = tl.sigmoid(1.5957691216057308 * x * (1 + 0.044715 * x * x))
        slope = s + x * s * (1 - s) * 1.5957691216057308 * (1 + 0.134145 * x * x)
    else:
        slope = 0.5 + 0.5 * tl.erf(x * 0.7071067811865476) + x * tl.exp(-0.5 * x * x) * 0.3989422804014327
    return slope


@triton.jit(do_not_specialize=["rows", "steps"])
def gelu_back(
    x, dy, dx, parts, rows, steps, C: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, TANH: tl.constexpr
):
    """dx (rows, C), and in parts (programs, C) its sums over the rows of a program."""
    c, i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, ROWS)
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    first = tl.program_id(1) * steps * ROWS
    for step in range(steps):
        row = first + step * ROWS + i
        ok = (row < rows)[:, None] & (c < C)[None, :]
        at = row.to(tl.int64)[:, None] * C + c[None, :]
        g = tl.load(dy + at, mask=ok, other=0).to(tl.float32)
        g *= _slope(tl.load(x + at, mask=ok, other=0).to(tl.float32), TANH)
        tl.store(dx + at, g.to(dx.dtype.element_ty), mask=ok)
        total += g
    tl.store(parts + tl.program_id(1) * C + c, tl.sum(total, 0), mask=c < C)
