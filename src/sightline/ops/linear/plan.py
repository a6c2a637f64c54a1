"""How the work of InLine and linear attention is cut: fixed rules by shape; nothing is tuned at run time.

Numbers of tokens and sides of the grid may be symbols of a graph.
"""

from dataclasses import dataclass, replace

import torch
import triton

from sightline.backend import LARGE, MEDIUM
from sightline.ops.common.arguments import sym_max, sym_min
from sightline.ops.common.launching import Constant

SHORT = 1024  # tokens up to which one program takes the keys of a whole image
CHUNK = {True: 512, False: 1024}  # tokens of a chunk at least, for head dims up to 32 and beyond
PARTS = 64  # chunks at most
TINY = 256  # tokens up to which one program takes the backward pass, or the windows, of a whole image
ROWS = 16  # grid rows of a chunk in the backward pass
LINE = 256  # columns of a chunk of a grid of one row, likewise
PROGRAMS = 1024  # programs that a pass over the grid is cut into, if it has the rows


@dataclass(frozen=True)
class Tile:
    """The tile of a program: heads, channels (a power of two), tokens or columns; and how it is compiled."""

    heads: int
    width: int
    size: int
    warps: int
    stages: int = 3  # depth of the pipeline of loads
    registers: int | None = None  # a limit per thread, where running more programs at once pays off

    @property
    def constants(self) -> dict[str, Constant]:
        limit: dict[str, Constant] = {"maxnreg": self.registers} if self.registers else {}
        return {"GROUP": self.heads, "W": self.width, "num_warps": self.warps, "num_stages": self.stages, **limit}


@dataclass(frozen=True)
class Plan:
    """How the work is cut. Sums depend on `chunk` and `rows`, which follow from the size of an image alone, so that an
    image gives the same bits in any batch."""

    sums: Tile  # sums over the keys
    queries: Tile  # passes over the tokens without a residual
    whole: Tile  # a whole image at once, with the residual
    write: Tile  # the output with the residual
    keys: Tile  # dk, dv and dw with the residual
    line: Tile  # those of a grid of one row
    back: Tile  # the gradients of a whole image at once
    chunk: int  # tokens of a chunk
    rows: int  # grid rows of a chunk of dk, dv and dw
    short: bool  # one chunk
    tiny: bool  # one program for the backward pass
    near: bool  # one program for the windows
    split: bool  # dk and dv in two passes, as E and its transpose do not fit into shared memory together

    @property
    def tiles(self) -> tuple[Tile, ...]:
        return self.sums, self.queries, self.whole, self.write, self.keys, self.line, self.back

    def pieces(
        self, tile: Tile, grid: tuple[int, int], tokens: int, programs: int, residual: bool, line: bool = False
    ) -> tuple[int, int]:
        """Pieces of a pass over the tokens by `programs` heads of images; tokens, grid rows or, in a line, columns of a
        piece."""
        if not residual:
            return triton.cdiv(tokens, self.chunk), self.chunk
        height, width = grid
        if line:
            columns = sym_max(8 * tile.size, triton.cdiv(width, triton.cdiv(PROGRAMS, programs // tile.heads)))
            return sym_max(1, triton.cdiv(width, columns)), columns
        strips = sym_max(1, triton.cdiv(width, tile.size))
        wanted = triton.cdiv(PROGRAMS, programs // tile.heads * strips)
        rows = sym_max(8, triton.cdiv(height, wanted))
        return strips * sym_max(1, triton.cdiv(height, rows)), rows


def plan(
    heads: int, dim: int, tokens: int, grid: tuple[int, int], dtype: torch.dtype, linear: bool, shared: int = LARGE,
    readers: bool = False, either: bool = False,
) -> Plan:  # fmt: skip
    """The configuration for a shape, as measured on an H200 (docs/performance.md), and made to fit `shared` bytes.

    `either` is for a graph for any number of tokens: the plan of many, without a guard.

    Tokens are read in segments of 128 bytes or more where the heads allow it. Where the residual walks down the grid, a
    tile of 16 columns x 32 channels per warp is best, 16 x 16 where registers are short. Linear attention keeps to one
    head per program, whose totals are sums over its channels. Softmax for a few `readers` takes registers.
    """
    small = dtype == torch.bfloat16  # other types are multiplied as float32
    wide, narrow = (1, 1) if linear else (heads_together(heads, dim, 64), heads_together(heads, dim, 32))
    flat, strip = padded(wide * dim), padded(narrow * dim)
    size = 64 if small else 32
    depth = 3 if strip <= 64 or dtype != torch.float32 else 2
    warps = 8 if strip == 64 and not small else max(1, strip // 16)
    walks = 4 if small and strip <= 32 else depth  # stages
    deep = flat == 64 and small and not readers
    together = 64 if strip == 64 or (readers and strip < 64) else 32
    short = not either and bool(tokens <= SHORT)
    tiny = short and bool(tokens <= TINY)
    parts = 1 if short else sym_min(PARTS, triton.cdiv(tokens, CHUNK[dim <= 32]))
    cut = Plan(
        # Not pipelined with 128 channels: with Triton 3.6 on compute capability 9.0, such sums changed from run to run.
        sums=Tile(wide, flat, size, 4) if flat <= 64 else Tile(wide, flat, size, 8, stages=1),
        queries=Tile(wide, flat, size, {32: 2, 64: 4, 128: 8}.get(flat, 1), 4 if deep else depth),
        whole=Tile(narrow, strip, together, max(1, strip // 16), registers=None if readers else 168)
        if small
        else Tile(wide, flat, 32, max(1, flat // 16)),
        write=Tile(narrow, strip, 16, max(1, strip // 32), 4 if small else 3),
        keys=Tile(narrow, strip, 32 if strip == 64 and small else 16, warps, walks),
        line=Tile(narrow, strip, 32 if strip <= 64 and dtype != torch.float32 else 16, min(8, strip // 8), walks),
        back=Tile(narrow, strip, 16, max(1, strip // 16), walks),
        chunk=triton.cdiv(triton.cdiv(tokens, parts), size) * size,
        rows=sym_max(1, triton.cdiv(grid[0], sym_max(1, triton.cdiv(grid[0], ROWS)))),
        short=short,
        tiny=tiny,
        near=tiny and (shared >= MEDIUM or dim <= 32),
        split=dtype == torch.float32 and flat > 64,
    )
    return cut if shared >= LARGE else fit(cut, dtype, shared, readers)


def shortness(tokens: int) -> int:
    """1 if one program takes the keys of a whole image, else 0; a symbol if `tokens` is one."""
    return sym_min(1, SHORT // tokens)


def fit(cut: Plan, dtype: torch.dtype, shared: int, readers: bool) -> Plan:
    """The plan for a GPU with less shared memory than an H200: wide tiles are shorter, with fewer loads at once."""
    wide = 64 if (dtype == torch.float32 or readers) and shared < MEDIUM else 128

    def smaller(tile: Tile) -> Tile:
        if tile.width < wide:
            return tile
        stages = 2 if dtype == torch.bfloat16 or tile.width <= 64 else 1
        return replace(tile, size=max(16, tile.size // 2), stages=stages)

    return replace(
        cut,
        queries=smaller(cut.queries),
        write=smaller(cut.write),
        keys=smaller(cut.keys),
        line=smaller(cut.line),
        tiny=cut.tiny and cut.back.width <= 32,
        split=dtype != torch.bfloat16 and cut.queries.width > 64,
    )


def heads_together(heads: int, dim: int, channels: int) -> int:
    """How many heads to take together for at least `channels` channels."""
    choices = [g for g in range(1, heads + 1) if heads % g == 0 and g * dim <= 64] or [1]
    return next((g for g in choices if g * dim >= channels), choices[-1])


def padded(channels: int) -> int:
    """The width of a tile for `channels` channels."""
    return max(16, triton.next_power_of_2(channels))
