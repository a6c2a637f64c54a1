"""Launches the kernels: what is cut how, chosen from the shape by fixed rules; nothing is tuned at run time."""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
import triton
from torch import Tensor

from sightline.ops.fused import backward_kernels, forward_kernels
from sightline.ops.fused.launcher import INTERPRETED, compiling, run

# How tensors are multiplied; Triton's interpreter has no products of bfloat16.
PRODUCTS = {torch.bfloat16: "tf32" if INTERPRETED else "bf16", torch.float16: "tf32", torch.float32: "fp32"}
SHORT = 1024  # tokens up to which one program takes the keys of a whole image
CHUNK = {True: 512, False: 1024}  # tokens of a chunk at least, for head dims up to 32 and beyond
PARTS = 64  # chunks at most
ROWS = 32  # grid rows of a chunk in the sum of dw
SUM_TILE = {"PARTS": 8, "BLOCK": 512}  # of the sum over chunks
PROGRAMS = 1024  # programs that a pass over the grid is cut into, if it has the rows


@dataclass(frozen=True)
class Tile:
    """What a program of one kernel works on: heads, channels (a power of two), tokens or columns; and how."""

    heads: int
    width: int
    size: int
    warps: int
    stages: int = 3  # depth of the pipeline of loads
    registers: int | None = None  # a limit for each thread, where more programs at a time pay for it

    @property
    def constants(self) -> dict[str, Any]:
        limit = {"maxnreg": self.registers} if self.registers else {}
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
    tile of 16 columns x 32 channels a warp is best, 16 x 16 where registers are short. Linear attention keeps to one
    head a program, whose totals are sums over its channels.
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
    """Numbers in the row of sums of an image; `forward_kernels` says which."""
    return heads * dim * (dim + 4) + 4


@dataclass(frozen=True)
class Call:
    """The shape and options of one call, as the kernels want them; `longest` and `grid` are the largest of a pack."""

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
    heads, dim = q.shape[2:]
    cut = _plan(q, k, call)
    flags, images = _flags(q, residual, mask, cu, call, (q, k, v))
    if not INTERPRETED and q.is_cuda:
        _compile_ahead(q, k, v, residual, mask is not None, cu is not None, call, save, (*flags.values(), *cut.tiles))
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    size = row_size(heads, dim)
    weights, steps = _weights(residual)
    place = (*call.grid, call.prefix, call.scale, call.eps)
    if cut.short:
        sums = torch.empty(images if save else 0, size, dtype=torch.float32, device=q.device)
        tile = cut.whole if residual is not None else cut.queries
        run(
            forward_kernels.forward_short, (heads // tile.heads, images),
            (q, k, v, out, weights, mask, cu, grids, sums, *q.stride(), *k.stride(), *v.stride(), *out.stride()[:2],
             *steps, heads, q.shape[1], k.shape[1], *place),
            {"T": tile.size, "X": cut.write.size, "SAVE": save, "STAGES": cut.write.stages, **flags, **tile.constants},
        )  # fmt: skip
        return out, sums
    parts = triton.cdiv(call.longest or k.shape[1], cut.chunk)
    partial = torch.empty(parts, images, size, dtype=torch.float32, device=q.device)
    run(
        forward_kernels.forward_partial, (heads // cut.sums.heads, images, parts),
        (k, v, mask, cu, partial, *k.stride(), *v.stride(), heads, k.shape[1], cut.chunk),
        {"T": cut.sums.size, **_without(flags, "RESIDUAL"), **cut.sums.constants},
    )  # fmt: skip
    sums = _add(partial, torch.float32)
    tile = cut.write if residual is not None else cut.queries
    pieces, chunk = _pieces(tile, cut, call, heads * images, q.shape[1], residual is not None)
    run(
        forward_kernels.forward_write, (heads // tile.heads, images, pieces),
        (q, v, out, weights, mask, cu, grids, sums, *q.stride(), *v.stride(), *out.stride()[:2], *steps, heads,
         q.shape[1], k.shape[1], chunk, *place),
        {"T": cut.queries.size, "X": tile.size, "STAGES": tile.stages, **flags, **tile.constants},
    )  # fmt: skip
    return out, sums if save else sums.new_empty(0, size)


def backward(
    q: Tensor, k: Tensor, v: Tensor, grad: Tensor, residual: Tensor | None, mask: Tensor | None, cu: Tensor | None,
    grids: Tensor | None, sums: Tensor, call: Call, gradients: tuple[Tensor, Tensor, Tensor],
) -> Tensor:  # fmt: skip
    """Writes `gradients`, dq, dk and dv; returns d(residual), empty where there is none."""
    heads, dim = q.shape[2:]
    cut = _plan(q, k, call)
    flags, images = _flags(q, residual, mask, cu, call, (q, k, v, grad))
    dq, dk, dv = gradients
    parts = triton.cdiv(call.longest or q.shape[1], cut.chunk)
    edges = torch.empty(parts, images, heads * dim * (dim + 1), dtype=torch.float32, device=q.device)
    run(
        backward_kernels.backward_queries, (heads // cut.queries.heads, images, parts),
        (q, grad, cu, sums, dq, edges, *q.stride(), *grad.stride(), *dq.stride()[:2], heads, q.shape[1], cut.chunk,
         call.scale, call.eps),
        {"T": cut.queries.size, **_without(flags, "RESIDUAL", "MASKED"), **cut.queries.constants},
    )  # fmt: skip
    edge = _add(edges, torch.float32)
    for wanted, weights in _key_passes(cut, residual, q.dtype):
        _keys(k, v, grad, weights, mask, cu, grids, sums, edge, dk, dv, call, cut, flags, images, wanted)
    if residual is None:
        return q.new_empty(0)
    return _taps(v, grad, residual, mask, cu, grids, call, cut, flags, images)


_compiled: set[tuple] = set()


def _compile_ahead(
    q: Tensor, k: Tensor, v: Tensor, residual: Tensor | None, masked: bool, packed: bool, call: Call, save: bool,
    kind: tuple,
) -> None:  # fmt: skip
    """Before the first call of its kind, compile the kernels for short and for long images, and those of backward.

    They are compiled in parallel, on tensors without data, so that no later size has to wait.
    """
    key = (*kind, q.dtype, save, None if residual is None else residual.dtype)
    if key in _compiled:
        return
    _compiled.add(key)
    with compiling():
        for side in (1, math.isqrt(SHORT) + 1):
            tokens, meta = side * side, torch.device("meta")
            qs, ks, vs = (
                torch.empty_strided((1, tokens, *t.shape[2:]), t.stride(), dtype=t.dtype, device=meta)
                for t in (q, k, v)
            )
            weights = None if residual is None else residual[:1].to(meta)
            mask = torch.empty(1, tokens, dtype=torch.bool, device=meta) if masked else None
            cu = torch.empty(2, dtype=torch.int32, device=meta) if packed else None
            grids = torch.empty(1, 2, dtype=torch.int32, device=meta) if packed and residual is not None else None
            grid = (side, side) if residual is not None else (0, 0)
            size = replace(call, grid=grid, longest=tokens if packed else 0)
            out, sums = forward(qs, ks, vs, weights, mask, cu, grids, size, save)
            if save:
                outputs = (torch.empty_like(qs), torch.empty_like(ks), torch.empty_like(vs))
                backward(qs, ks, vs, torch.empty_like(out), weights, mask, cu, grids, sums, size, outputs)


def _key_passes(cut: Plan, residual: Tensor | None, dtype: torch.dtype) -> list[tuple[str, Tensor | None]]:
    """What a pass over the keys makes, and the weights that it takes.

    Float32 with head dims over 64 takes two passes: E and its transpose, each in two halves, do not fit on the chip.
    """
    if dtype == torch.float32 and cut.queries.width > 64:
        return [("k", None), ("v", residual)]
    return [("kv", residual)]


def _keys(
    k: Tensor, v: Tensor, grad: Tensor, residual: Tensor | None, mask: Tensor | None, cu: Tensor | None,
    grids: Tensor | None, sums: Tensor, edge: Tensor, dk: Tensor, dv: Tensor, call: Call, cut: Plan,
    flags: dict[str, Any], images: int, wanted: str,
) -> None:  # fmt: skip
    """Writes dk, dv or both."""
    heads = k.shape[2]
    weights, steps = _weights(residual)
    tile = cut.keys if residual is not None else cut.queries
    pieces, chunk = _pieces(tile, cut, call, heads * images, k.shape[1], residual is not None)
    run(
        backward_kernels.backward_keys, (heads // tile.heads, images, pieces),
        (k, v, grad, weights, mask, cu, grids, sums, edge, dk, dv, *k.stride(), *v.stride(), *grad.stride(),
         *dk.stride()[:2], *dv.stride()[:2], *steps, heads, grad.shape[1], k.shape[1], chunk, *call.grid, call.prefix,
         call.scale),
        {"T": cut.queries.size, "X": tile.size, "STAGES": tile.stages, "DK": "k" in wanted, "DV": "v" in wanted,
         **flags, "RESIDUAL": residual is not None, **tile.constants},
    )  # fmt: skip


def _taps(
    v: Tensor, grad: Tensor, residual: Tensor, mask: Tensor | None, cu: Tensor | None, grids: Tensor | None, call: Call,
    cut: Plan, flags: dict[str, Any], images: int,
) -> Tensor:  # fmt: skip
    """The gradient of the weights, (images, C, 3, 3)."""
    heads, channels = v.shape[2], residual.shape[1]
    strips = max(1, triton.cdiv(call.grid[1], cut.taps.size))
    pieces = strips * max(1, triton.cdiv(call.grid[0], cut.rows))
    dtype = residual.dtype if pieces == 1 else torch.float32
    parts = torch.empty(pieces, images, 3, 3, channels, dtype=dtype, device=v.device)
    run(
        backward_kernels.backward_taps, (heads // cut.taps.heads, images, pieces),
        (v, grad, mask, cu, grids, parts, *v.stride(), *grad.stride(), channels, grad.shape[1], v.shape[1], cut.rows,
         *call.grid, call.prefix),
        {"X": cut.taps.size, "STAGES": cut.taps.stages, **_without(flags, "PHI", "LINEAR", "RESIDUAL", "DOT"),
         **cut.taps.constants},
    )  # fmt: skip
    return _add(parts, residual.dtype).permute(0, 3, 1, 2)


def _plan(q: Tensor, k: Tensor, call: Call) -> Plan:
    heads, dim = q.shape[2:]
    return plan(heads, dim, call.longest or max(q.shape[1], k.shape[1]), call.grid, q.dtype, call.linear)


def _flags(
    q: Tensor, residual: Tensor | None, mask: Tensor | None, cu: Tensor | None, call: Call, tensors: tuple[Tensor, ...]
) -> tuple[dict[str, Any], int]:
    """The constants that all kernels share, and the number of images."""
    dim = q.shape[3]
    flags = {
        "D": dim, "PHI": call.phi, "LINEAR": call.linear, "RESIDUAL": residual is not None, "MASKED": mask is not None,
        "VARLEN": cu is not None, "DOT": PRODUCTS[q.dtype], "PACKED": all(t.stride()[2:] == (dim, 1) for t in tensors),
    }  # fmt: skip
    return flags, q.shape[0] if cu is None else cu.numel() - 1


def _pieces(tile: Tile, cut: Plan, call: Call, rows_of_heads: int, tokens: int, residual: bool) -> tuple[int, int]:
    """How many pieces a pass over the tokens is cut into, and the tokens or grid rows of a piece."""
    if not residual:
        return triton.cdiv(call.longest or tokens, cut.chunk), cut.chunk
    height, width = call.grid
    strips = max(1, triton.cdiv(width, tile.size))
    wanted = triton.cdiv(PROGRAMS, rows_of_heads // tile.heads * strips)
    rows = max(8, triton.cdiv(height, wanted))
    return strips * max(1, triton.cdiv(height, rows)), rows


def _add(parts: Tensor, dtype: torch.dtype) -> Tensor:
    """The sum over the first dimension, in a fixed order."""
    if parts.shape[0] == 1 and parts.dtype == dtype:
        return parts[0]
    out = torch.empty(parts.shape[1:], dtype=dtype, device=parts.device)
    grid = (triton.cdiv(out.numel(), SUM_TILE["BLOCK"]),)
    run(forward_kernels.add_parts, grid, (parts, out, parts.shape[0], out.numel()), SUM_TILE)
    return out


def _without(flags: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in flags.items() if key not in names}


def _weights(residual: Tensor | None) -> tuple[Tensor | None, tuple[int, int, int]]:
    """The weights (images, C, 3, 3) and their steps from image to image, channel to channel and tap to tap."""
    if residual is None:
        return None, (0, 0, 0)
    if residual.stride(2) != 3 * residual.stride(3):
        residual = residual.contiguous()
    return residual, (residual.stride(0), residual.stride(1), residual.stride(3))
