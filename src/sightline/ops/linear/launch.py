"""Launches of the kernels: how the work is cut follows from the shape by fixed rules; nothing is tuned at run time."""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from sightline.ops.common.arguments import Filters, Tokens
from sightline.ops.common.launching import (
    INTERPRETED,
    Constants,
    Layout,
    Program,
    compile_all,
    in_order,
    products,
    program_for,
    without,
)
from sightline.ops.linear import backward_kernels, forward_kernels

SHORT = 1024  # tokens up to which one program takes the keys of a whole image
CHUNK = {True: 512, False: 1024}  # tokens of a chunk at least, for head dims up to 32 and beyond
PARTS = 64  # chunks at most
ROWS = 32  # grid rows of a chunk in the sum of dw
PROGRAMS = 1024  # programs that a pass over the grid is cut into, if it has the rows


@dataclass(frozen=True)
class Tile:
    """The tile of a program: heads, channels (a power of two), tokens or columns; and how it is compiled."""

    heads: int
    width: int
    size: int
    warps: int
    stages: int = 3  # depth of the pipeline of loads
    registers: int | None = None  # a limit per thread, where more programs at a time pay for it

    @property
    def constants(self) -> Constants:
        limit: Constants = {"maxnreg": self.registers} if self.registers else {}
        return {"GROUP": self.heads, "W": self.width, "num_warps": self.warps, "num_stages": self.stages, **limit}


@dataclass(frozen=True)
class Plan:
    """How the work is cut. Sums depend on `chunk` and `rows`, which follow from the size of an image alone, so that an
    image gives the same bits in any batch."""

    sums: Tile  # sums over the keys
    queries: Tile  # passes over the tokens without a residual
    whole: Tile  # a whole image at once, with the residual
    write: Tile  # the output with the residual
    keys: Tile  # dk and dv with the residual
    taps: Tile  # dw
    chunk: int  # tokens of a chunk
    rows: int  # grid rows of a chunk of dw
    short: bool  # one chunk

    @property
    def tiles(self) -> tuple[Tile, ...]:
        return self.sums, self.queries, self.whole, self.write, self.keys, self.taps


@lru_cache(maxsize=4096)
def plan(heads: int, dim: int, tokens: int, grid: tuple[int, int], dtype: torch.dtype, linear: bool) -> Plan:
    """The configuration for a shape, as measured on an H200 (docs/performance.md).

    Tokens are read in segments of 128 bytes or more where the heads allow it. Where the residual walks down the grid, a
    tile of 16 columns x 32 channels per warp is best, 16 x 16 where registers are short. Linear attention keeps to one
    head per program, whose totals are sums over its channels.
    """
    small = dtype == torch.bfloat16  # other types are multiplied as float32
    wide, narrow = (1, 1) if linear else (_heads(heads, dim, 64), _heads(heads, dim, 32))
    flat, strip = _width(wide * dim), _width(narrow * dim)
    size = 64 if small else 32
    depth = 3 if strip <= 64 or dtype != torch.float32 else 2
    parts = 1 if tokens <= SHORT else min(PARTS, triton.cdiv(tokens, CHUNK[dim <= 32]))
    chunk = triton.cdiv(triton.cdiv(tokens, parts), size) * size
    rows = triton.cdiv(grid[0], max(1, triton.cdiv(grid[0], ROWS)))
    return Plan(
        sums=Tile(wide, flat, size, 4 if flat <= 64 else 8),
        queries=Tile(wide, flat, size, {32: 2, 64: 4, 128: 8}.get(flat, 1), 4 if flat == 64 and small else depth),
        whole=Tile(wide, flat, 32, max(1, flat // 16), registers=168 if small else None),
        write=Tile(narrow, strip, 16, max(1, strip // 32), 4 if small else 3),
        keys=Tile(narrow, strip, 32 if strip == 64 and small else 16, max(1, strip // 16), depth),
        taps=Tile(narrow, strip, 16, max(1, strip // 32), 4 if small else 3),
        chunk=chunk,
        rows=max(1, rows),
        short=parts == 1,
    )


def _heads(heads: int, dim: int, channels: int) -> int:
    """How many heads to take together for at least so many channels."""
    choices = [g for g in range(1, heads + 1) if heads % g == 0 and g * dim <= 64] or [1]
    return next((g for g in choices if g * dim >= channels), choices[-1])


def _width(channels: int) -> int:
    return max(16, triton.next_power_of_2(channels))


def row_size(heads: int, dim: int) -> int:
    """Numbers in the row of sums of an image; see `forward_kernels`."""
    return heads * dim * (dim + 4) + 4


class Call(NamedTuple):
    """The options of one call; `longest` and `grid` are the largest of a pack, `longest` is 0 for images of one size.

    Part of the key by which every call finds its program, hence a tuple.
    """

    phi: str
    linear: bool
    scale: float
    eps: float
    prefix: int
    grid: tuple[int, int]
    longest: int


def forward(
    q: Tensor, k: Tensor, v: Tensor, residual: Tensor | None, mask: Tensor | None, cu: Tensor | None,
    grids: Tensor | None, call: Call, save: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """out, and the row of sums of every image, which backward needs; no rows unless `save`."""
    inputs = (q, k, v, None if residual is None else evenly_spaced(residual), in_order(mask), in_order(cu), grids)

    def plan(*layouts: Layout) -> Program:
        if not INTERPRETED:
            _compile_ahead(*layouts, call=call, save=save)
        return _forward(*layouts, call=call, save=save)

    out, sums = program_for("forward", inputs, (call, save), plan)(inputs, q.device)
    return out, sums if sums.ndim == 2 else sums.flatten(0, 1)  # a single part, which needed no adding up


def backward(
    q: Tensor, k: Tensor, v: Tensor, grad: Tensor, residual: Tensor | None, mask: Tensor | None, cu: Tensor | None,
    grids: Tensor | None, sums: Tensor, call: Call, gradients: tuple[Tensor, ...],
) -> Tensor:  # fmt: skip
    """Writes `gradients`, dq, dk and dv; returns d(residual), empty without a residual."""
    weights = None if residual is None else evenly_spaced(residual)
    inputs = (q, k, v, grad, weights, in_order(mask), in_order(cu), grids, sums, *gradients)
    program = program_for("backward", inputs, (call,), lambda *layouts: _backward(*layouts, call=call))
    results = program(inputs, q.device)
    if residual is None:
        return q.new_empty(0)
    images, channels = residual.shape[:2]
    return results[0].view(images, 3, 3, channels).permute(0, 3, 1, 2)


def evenly_spaced(weights: Tensor) -> Tensor:
    """Weights (B, C, 3, 3) whose nine taps are evenly spaced in memory."""
    return weights if weights.stride(2) == 3 * weights.stride(3) else weights.contiguous()


def _forward(
    q: Layout, k: Layout, v: Layout, residual: Layout | None, mask: Layout | None, cu: Layout | None,
    grids: Layout | None, *, call: Call, save: bool,
) -> Program:  # fmt: skip
    heads, dim = q.shape[2:]
    cut = _plan(q, k, call)
    flags, images = _flags(q, residual, mask, cu, call, (q, k, v))
    program = Program(7)
    out = program.buffer(q.shape, q.dtype)
    size = row_size(heads, dim)
    written = (Tokens.of(out), Filters.of(residual), mask, cu, grids)
    numbers = (*call.grid, call.prefix, call.scale, call.eps)
    if cut.short:
        sums = program.buffer((images if save else 0, size), torch.float32)
        program.results = out.slot, sums.slot
        tile = cut.whole if residual is not None else cut.queries
        program.launch(
            forward_kernels.forward_short, (heads // tile.heads, images),
            (Tokens.of(q), Tokens.of(k), Tokens.of(v), *written, sums, heads, q.shape[1], k.shape[1], *numbers),
            {"T": tile.size, "X": cut.write.size, "SAVE": save, "STAGES": cut.write.stages, **flags, **tile.constants},
        )  # fmt: skip
        return program
    parts = triton.cdiv(call.longest or k.shape[1], cut.chunk)
    partial = program.buffer((parts, images, size), torch.float32)
    program.launch(
        forward_kernels.forward_partial, (heads // cut.sums.heads, images, parts),
        (Tokens.of(k), Tokens.of(v), mask, cu, partial, heads, k.shape[1], cut.chunk),
        {"T": cut.sums.size, **without(flags, "RESIDUAL"), **cut.sums.constants},
    )  # fmt: skip
    sums = program.add_up(partial, torch.float32)
    tile = cut.write if residual is not None else cut.queries
    pieces, chunk = _pieces(tile, cut, call, heads * images, q.shape[1], residual is not None)
    program.launch(
        forward_kernels.forward_write, (heads // tile.heads, images, pieces),
        (Tokens.of(q), Tokens.of(v), *written, sums, heads, q.shape[1], k.shape[1], chunk, *numbers),
        {"T": cut.queries.size, "X": tile.size, "STAGES": tile.stages, **flags, **tile.constants},
    )  # fmt: skip
    program.results = out.slot, sums.slot if save else program.buffer((0, size), torch.float32).slot
    return program


def _backward(
    q: Layout, k: Layout, v: Layout, grad: Layout, residual: Layout | None, mask: Layout | None, cu: Layout | None,
    grids: Layout | None, sums: Layout, dq: Layout, dk: Layout, dv: Layout, *, call: Call,
) -> Program:  # fmt: skip
    heads, dim = q.shape[2:]
    cut = _plan(q, k, call)
    flags, images = _flags(q, residual, mask, cu, call, (q, k, v, grad))
    program = Program(12)
    parts = triton.cdiv(call.longest or q.shape[1], cut.chunk)
    edges = program.buffer((parts, images, heads * dim * (dim + 1)), torch.float32)
    program.launch(
        backward_kernels.backward_queries, (heads // cut.queries.heads, images, parts),
        (Tokens.of(q), Tokens.of(grad), cu, sums, Tokens.of(dq), edges, heads, q.shape[1], cut.chunk, call.scale,
         call.eps),
        {"T": cut.queries.size, **without(flags, "RESIDUAL", "MASKED"), **cut.queries.constants},
    )  # fmt: skip
    work = _Work(program, k, v, grad, mask, cu, grids, call, cut, flags, images)
    edge = program.add_up(edges, torch.float32)
    for wanted, weights in _key_passes(cut, residual, q.dtype):
        _keys(work, weights, sums, edge, dk, dv, wanted)
    if residual is not None:
        program.results = (_taps(work, residual).slot,)
    return program


@dataclass(frozen=True)
class _Work:
    """A backward program being planned, and what its passes over the keys share."""

    program: Program
    k: Layout
    v: Layout
    grad: Layout
    mask: Layout | None
    cu: Layout | None
    grids: Layout | None
    call: Call
    cut: Plan
    flags: Constants
    images: int


_compiled: set[tuple] = set()


def _compile_ahead(
    q: Layout, k: Layout, v: Layout, residual: Layout | None, mask: Layout | None, cu: Layout | None,
    grids: Layout | None, *, call: Call, save: bool,
) -> None:  # fmt: skip
    """Before the first call of a signature, compile the kernels for short and for long images, and those of backward.

    They are compiled in parallel, so that no later size has to compile.
    """
    flags, _ = _flags(q, residual, mask, cu, call, (q, k, v))
    weights = None if residual is None else (residual.dtype, *Filters.of(residual)[1:])
    key = (torch.cuda.current_device(), *flags.values(), *_plan(q, k, call).tiles, q.dtype, save, weights)
    if key in _compiled:
        return
    _compiled.add(key)
    programs = []
    for side in (1, math.isqrt(SHORT) + 1):
        tokens = side * side
        size = call._replace(
            grid=(side, side) if residual is not None else (0, 0), longest=tokens if cu is not None else 0
        )
        qs, ks, vs = (replace(x, shape=(1, tokens, *x.shape[2:])) for x in (q, k, v))
        programs.append(_forward(qs, ks, vs, residual, mask, cu, grids, call=size, save=save))
        if save:
            g, dq, dk, dv = (x.part(x.shape) for x in (qs, qs, ks, vs))
            sums = Layout(8, (1, row_size(*q.shape[2:])), (1, 1), torch.float32)
            programs.append(_backward(qs, ks, vs, g, residual, mask, cu, grids, sums, dq, dk, dv, call=size))
    compile_all(programs)


def _key_passes(cut: Plan, residual: Layout | None, dtype: torch.dtype) -> list[tuple[str, Layout | None]]:
    """What a pass over the keys makes, and the weights that it takes.

    Float32 with head dims over 64 takes two passes: E and its transpose, each in two halves, do not fit on the chip.
    """
    if dtype == torch.float32 and cut.queries.width > 64:
        return [("k", None), ("v", residual)]
    return [("kv", residual)]


def _keys(
    work: _Work, residual: Layout | None, sums: Layout, edge: Layout, dk: Layout, dv: Layout, wanted: str
) -> None:
    """Writes dk, dv or both."""
    k, v, grad, call, cut = work.k, work.v, work.grad, work.call, work.cut
    heads = k.shape[2]
    tile = cut.keys if residual is not None else cut.queries
    pieces, chunk = _pieces(tile, cut, call, heads * work.images, k.shape[1], residual is not None)
    work.program.launch(
        backward_kernels.backward_keys, (heads // tile.heads, work.images, pieces),
        (Tokens.of(k), Tokens.of(v), Tokens.of(grad), Filters.of(residual), work.mask, work.cu, work.grids, sums, edge,
         Tokens.of(dk), Tokens.of(dv), heads, grad.shape[1], k.shape[1], chunk, *call.grid, call.prefix, call.scale),
        {"T": cut.queries.size, "X": tile.size, "STAGES": tile.stages, "DK": "k" in wanted, "DV": "v" in wanted,
         **work.flags, "RESIDUAL": residual is not None, **tile.constants},
    )  # fmt: skip


def _taps(work: _Work, residual: Layout) -> Layout:
    """The gradient of the weights, (images, 3, 3, C)."""
    v, grad, call, cut = work.v, work.grad, work.call, work.cut
    heads, channels = v.shape[2], residual.shape[1]
    strips = max(1, triton.cdiv(call.grid[1], cut.taps.size))
    pieces = strips * max(1, triton.cdiv(call.grid[0], cut.rows))
    dtype = residual.dtype if pieces == 1 else torch.float32
    parts = work.program.buffer((pieces, work.images, 3, 3, channels), dtype)
    work.program.launch(
        backward_kernels.backward_taps, (heads // cut.taps.heads, work.images, pieces),
        (Tokens.of(v), Tokens.of(grad), work.mask, work.cu, work.grids, parts, channels, grad.shape[1], v.shape[1],
         cut.rows, *call.grid, call.prefix),
        {"X": cut.taps.size, "STAGES": cut.taps.stages, **without(work.flags, "PHI", "LINEAR", "RESIDUAL", "DOT"),
         **cut.taps.constants},
    )  # fmt: skip
    return work.program.add_up(parts, residual.dtype)


def _plan(q: Layout, k: Layout, call: Call) -> Plan:
    heads, dim = q.shape[2:]
    return plan(heads, dim, call.longest or max(q.shape[1], k.shape[1]), call.grid, q.dtype, call.linear)


def _flags(
    q: Layout, residual: Layout | None, mask: Layout | None, cu: Layout | None, call: Call, tensors: tuple[Layout, ...]
) -> tuple[Constants, int]:
    """The constants that all kernels share, and the number of images."""
    dim = q.shape[3]
    flags: Constants = {
        "D": dim, "PHI": call.phi, "LINEAR": call.linear, "RESIDUAL": residual is not None, "MASKED": mask is not None,
        "VARLEN": cu is not None, "DOT": products(q.dtype), "PACKED": all(t.strides[2:] == (dim, 1) for t in tensors),
    }  # fmt: skip
    return flags, q.shape[0] if cu is None else cu.shape[0] - 1


def _pieces(tile: Tile, cut: Plan, call: Call, rows_of_heads: int, tokens: int, residual: bool) -> tuple[int, int]:
    """How many pieces a pass over the tokens is cut into, and the tokens or grid rows of a piece."""
    if not residual:
        return triton.cdiv(call.longest or tokens, cut.chunk), cut.chunk
    height, width = call.grid
    strips = max(1, triton.cdiv(width, tile.size))
    wanted = triton.cdiv(PROGRAMS, rows_of_heads // tile.heads * strips)
    rows = max(8, triton.cdiv(height, wanted))
    return strips * max(1, triton.cdiv(height, rows)), rows
