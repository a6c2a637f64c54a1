"""The kernel that gathers patches."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["height", "width", "rows", "columns"])
def gather(
    x, out, height, width, rows, columns, C: tl.constexpr, DOWN: tl.constexpr, ACROSS: tl.constexpr,
    BY_COLUMN: tl.constexpr, BLOCK: tl.constexpr,
):
    """A piece of one line of a map, padded to `rows` x `columns` patches of DOWN x ACROSS tokens."""
    line, image = tl.program_id(1), tl.cast(tl.program_id(2), tl.int64)
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    token = index // C
    source = x + (image * height + line) * width * C + index
    value = tl.load(source, mask=token < tl.where(line < height, width, 0), other=0.0)
    down, across = line % DOWN, token % ACROSS
    place = across * DOWN + down if BY_COLUMN else down * ACROSS + across
    patch = (image * rows + line // DOWN) * columns + token // ACROSS
    target = out + patch * (DOWN * ACROSS * C) + place * C + index % C
    tl.store(target, value, mask=token < columns * ACROSS)
