"""The sum of partial sums, in a fixed order."""

import triton
import triton.language as tl


@triton.jit
def add_block(parts_ptr, out, block, parts, size, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """One block of (parts, size) -> (size,), in the type of `out`; PARTS parts are read at a time."""
    item = tl.cast(block, tl.int64) * BLOCK + tl.arange(0, BLOCK)
    part = tl.arange(0, PARTS)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, parts, PARTS):
        cell = (first + part < parts)[:, None] & (item < size)[None, :]
        offset = (first + part)[:, None] * tl.cast(size, tl.int64) + item[None, :]
        total += tl.sum(tl.load(parts_ptr + offset, mask=cell, other=0), 0)  # PARTS BLOCK
    tl.store(out + item, total.to(out.dtype.element_ty), mask=item < size)


@triton.jit(do_not_specialize=["parts", "size"])
def add_parts(parts_ptr, out, parts, size, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """(parts, size) -> (size,)."""
    add_block(parts_ptr, out, tl.program_id(0), parts, size, PARTS, BLOCK)
