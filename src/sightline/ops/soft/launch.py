"""Launches the kernels of SOFT: what is cut how, chosen from the shape by fixed rules; nothing is tuned at run time."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
import triton
from torch import Tensor

from sightline.ops.fused.launch import PRODUCTS, without
from sightline.ops.fused.launcher import INTERPRETED, compiling, run
from sightline.ops.soft import backward_kernels, forward_kernels, matrix_kernels
from sightline.ops.soft.newton import RIDGE, STEP, steps_in

SHORT = 1024  # tokens up to which an image is one chunk
CHUNK = 512  # tokens of a chunk at least
PARTS = 64  # chunks at most
BLOCK = 64  # landmarks up to which one program inverts, and of a block beyond


@dataclass(frozen=True)
class Plan:
    """How the work is cut. Sums depend on `chunk`, which follows from the size of an image alone, so that an image
    gives the same bits in any batch."""

    width: int  # W, channels up to a power of two
    block: int  # M, landmarks of a block, a power of two
    blocks: int
    size: int  # T, tokens of a tile
    chunk: int  # tokens of a chunk
    parts: int  # chunks
    joint: bool  # dq, dv and dl in one pass over the tokens; else dq and dv in one, dl in another
    warps: int
    stages: int

    @property
    def short(self) -> bool:
        return self.parts == 1 and self.blocks == 1

    @property
    def together(self) -> bool:
        """Whether backward has one program for all of a head's dl."""
        return self.short and self.joint

    def tile(self) -> dict[str, Any]:
        constants = {"W": self.width, "M": self.block, "T": self.size, "num_warps": self.warps}
        return {**constants, "num_stages": self.stages}

    @property
    def queries(self) -> dict[str, Any]:
        """For dq and dv in a pass of their own."""
        return {**self.tile(), "M": min(32 if self.width <= 64 else 16, self.block)}

    @property
    def landmarks(self) -> dict[str, Any]:
        """For dl in a pass of its own."""
        tile = self.tile()
        if self.warps == 8:
            tile["num_stages"] = 1
        return {**tile, "M": self.block if self.width <= 32 else min(32, self.block), "T": 32}

    @property
    def pairs(self) -> dict[str, Any]:
        """For the gradient of A, block by block."""
        small = min(self.block, {32: 64, 64: 32, 128: 16}.get(self.width, 64))
        return {"W": self.width, "M": small, "num_warps": 4, "num_stages": 1}

    @property
    def matrix(self) -> dict[str, Any]:
        """For the kernels without tokens."""
        return {"W": self.width, "M": self.block, "num_warps": 4, "num_stages": 2}


def _width(dim: int) -> int:
    return max(16, triton.next_power_of_2(dim))


@lru_cache(maxsize=4096)
def plan(dim: int, tokens: int, landmarks: int, dtype: torch.dtype) -> Plan:
    """The configuration for a head dim, tokens and landmarks of an image (the most of a pack)."""
    width = _width(dim)
    block = min(BLOCK, max(16, triton.next_power_of_2(landmarks)))
    blocks = triton.cdiv(landmarks, block)
    small = dtype == torch.bfloat16  # other types are multiplied as float32
    parts = 1 if tokens <= SHORT else min(PARTS, triton.cdiv(tokens, CHUNK))
    chunk = triton.cdiv(triton.cdiv(tokens, parts), 64) * 64
    return Plan(
        width=width,
        block=block,
        blocks=blocks,
        size=64 if small or width <= 64 else 32,
        chunk=chunk,
        parts=max(1, triton.cdiv(tokens, chunk)),
        joint=small and blocks == 1,
        warps=4 if width <= 64 else 8,
        stages=3 if small and width <= 64 else 2,
    )


@dataclass(frozen=True)
class Call:
    """The options of one call; `longest` tokens and `most` landmarks of a pack, 0 for images of one size."""

    longest: int
    most: int
    scale: float
    normalized: bool
    iterations: int

    @property
    def inverse(self) -> tuple[int, float, float, float]:
        """Newton's steps, the first step's factor, what is added to the diagonal, and the scale of the iterate."""
        steps = steps_in(self.iterations, torch.float32)
        return steps, STEP[self.normalized], 0.0 if self.normalized else RIDGE, 0.5 ** max(0, (steps - 19) // 2)


Saved = tuple[Tensor, Tensor, Tensor, Tensor]  # Z, Y, K, and the row sums of A where there are several blocks


def saved_shapes(rows: int, landmarks: int, dim: int, keep: bool) -> list[tuple[int, ...]]:
    """The shapes of what backward needs, for so many heads of images; without rows unless `keep`.

    Sizes may be symbols of a graph, so this compares and divides only.
    """
    padded = next((size for size in (16, 32) if landmarks <= size), (landmarks + BLOCK - 1) // BLOCK * BLOCK)
    width, rows = _width(int(dim)), rows if keep else 0
    degrees = rows if landmarks > BLOCK else 0
    return [(rows, padded, width), (rows, padded, width), (rows, padded, padded), (degrees, padded)]


def _plan(q: Tensor, landmarks: Tensor, call: Call) -> Plan:
    return plan(q.shape[3], call.longest or q.shape[1], call.most or landmarks.shape[1], q.dtype)


def _flags(q: Tensor, mask: Tensor | None, cu: Tensor | None) -> tuple[dict[str, Any], int]:
    """The constants that the kernels share, and the number of images times heads."""
    images = q.shape[0] if cu is None else cu.numel() - 1
    flags = {"D": q.shape[3], "MASKED": mask is not None, "VARLEN": cu is not None, "DOT": PRODUCTS[q.dtype]}
    return flags, images * q.shape[2]


def forward(
    q: Tensor, v: Tensor, landmarks: Tensor, mask: Tensor | None, cu: Tensor | None, cu_landmarks: Tensor | None,
    call: Call, save: bool,
) -> tuple[Tensor, Saved]:  # fmt: skip
    """out, and what backward needs; that is empty unless `save`."""
    cut = _plan(q, landmarks, call)
    flags, rows = _flags(q, mask, cu)
    if not INTERPRETED and q.is_cuda:
        _compile_ahead(q, v, landmarks, mask is not None, cu is not None, call, save, cut)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    heads, tokens, m = q.shape[2], q.shape[1], landmarks.shape[1]
    kept = _empty(saved_shapes(rows, call.most or m, q.shape[3], True), q.device)
    sums, mixed, core, degrees = kept
    partial = _sums(q, v, landmarks, mask, cu, cu_landmarks, core, call, cut, flags, rows, invert=cut.blocks == 1)
    if cut.blocks == 1:
        run(forward_kernels.forward_mix, (rows,), (partial, core, sums, mixed, cut.parts), cut.matrix)
    else:
        _add(partial, sums, cut)
        _invert(landmarks, cu_landmarks, core, degrees, call, cut, flags, heads, rows)
        _multiply(core, sums, mixed, cut)
    run(
        forward_kernels.forward_write, (rows, cut.parts),
        (q, landmarks, out, cu, cu_landmarks, mixed, *q.stride(), *landmarks.stride(), *out.stride()[:3], heads,
         tokens, m, cut.chunk, cut.blocks, call.scale),
        {**without(flags, "MASKED"), **cut.tile(), "ONE": cut.blocks == 1},
    )  # fmt: skip
    if save:
        return out, (sums, mixed, core, degrees)
    return out, _empty(saved_shapes(rows, call.most or m, q.shape[3], False), q.device)


def backward(
    q: Tensor, v: Tensor, landmarks: Tensor, grad: Tensor, mask: Tensor | None, cu: Tensor | None,
    cu_landmarks: Tensor | None, saved: Saved, call: Call, gradients: tuple[Tensor, Tensor, Tensor],
) -> None:  # fmt: skip
    """Writes `gradients`: dq, dv, and d(landmarks)."""
    cut = _plan(q, landmarks, call)
    flags, rows = _flags(q, mask, cu)
    sums, mixed, core, degrees = saved
    dq, dv, dl = gradients
    heads, tokens, m = q.shape[2], q.shape[1], landmarks.shape[1]
    inputs = (*q.stride(), *v.stride(), *landmarks.stride(), *grad.stride())
    outputs = (*dq.stride()[:3], *dv.stride()[:3])
    mixed_grad, padded = torch.empty_like(mixed), cut.blocks * cut.block
    parts = 1 if cut.together else cut.parts + 1
    edges = torch.empty(parts, rows, padded, cut.width, dtype=torch.float32, device=q.device)
    partial = None
    if not cut.short:
        partial = _sums(q, grad, landmarks, None, cu, cu_landmarks, core, call, cut, flags, rows, invert=False)
    if cut.blocks == 1:
        run(
            backward_kernels.backward_mix, (rows,),
            (q, landmarks, grad, cu, cu_landmarks, partial, sums, mixed, core, mixed_grad, edges, *q.stride(),
             *landmarks.stride(), *grad.stride(), heads, tokens, m, cut.parts, call.scale),
            {**without(flags, "MASKED"), **cut.tile(), "NORMALIZED": call.normalized, "WHOLE": cut.short},
        )  # fmt: skip
    else:
        assert partial is not None
        sums_grad = torch.empty_like(sums)
        _add(partial, sums_grad, cut)
        _multiply(core, sums_grad, mixed_grad, cut, turn=True)
        blocks = padded // cut.pairs["M"]
        run(
            matrix_kernels.backward_matrix, (rows, blocks),
            (landmarks, cu_landmarks, degrees, sums, sums_grad, mixed, mixed_grad, edges, *landmarks.stride(), heads, m,
             blocks),
            {**without(flags, "MASKED"), **cut.pairs, "NORMALIZED": call.normalized},
        )  # fmt: skip
    shared = (q, v, landmarks, grad, mask, cu, cu_landmarks, mixed, mixed_grad)
    sizes = (heads, tokens, m, cut.chunk)
    if cut.joint:
        run(
            backward_kernels.backward_tokens, (rows, cut.parts),
            (*shared, dq, dv, dl, edges, *inputs, *outputs, *dl.stride()[:3], *sizes, call.scale),
            {**flags, **cut.tile(), "WHOLE": cut.together},
        )  # fmt: skip
    else:
        blocks = padded // cut.queries["M"]
        run(
            matrix_kernels.backward_queries, (rows, cut.parts),
            (*shared, dq, dv, *inputs, *outputs, *sizes, blocks, call.scale), {**flags, **cut.queries},
        )  # fmt: skip
        blocks = padded // cut.landmarks["M"]
        run(
            matrix_kernels.backward_landmarks, (rows, cut.parts * blocks),
            (*shared, edges, *inputs, *sizes, blocks, call.scale), {**flags, **cut.landmarks},
        )  # fmt: skip
    if not cut.together:
        run(
            backward_kernels.add_landmarks, (rows, cut.blocks),
            (edges, dl, cu_landmarks, *dl.stride()[:3], heads, m, cut.blocks, cut.parts + 1),
            {**without(flags, "MASKED", "DOT"), **cut.matrix},
        )  # fmt: skip


def _empty(shapes: list[tuple[int, ...]], device: torch.device) -> Saved:
    return tuple(torch.empty(shape, dtype=torch.float32, device=device) for shape in shapes)  # type: ignore[return-value]


def _sums(
    q: Tensor, v: Tensor, landmarks: Tensor, mask: Tensor | None, cu: Tensor | None, cu_landmarks: Tensor | None,
    core: Tensor, call: Call, cut: Plan, flags: dict[str, Any], rows: int, invert: bool,
) -> Tensor:  # fmt: skip
    """P^T v of every chunk, (parts, rows, landmarks, W); with `invert` also writes `core`."""
    heads, tokens, m = q.shape[2], q.shape[1], landmarks.shape[1]
    partial = torch.empty(cut.parts, rows, cut.blocks * cut.block, cut.width, dtype=torch.float32, device=q.device)
    run(
        forward_kernels.forward_sums, (rows, cut.parts * cut.blocks + invert),
        (q, v, landmarks, mask, cu, cu_landmarks, partial, core, *q.stride(), *v.stride(), *landmarks.stride(), heads,
         tokens, m, cut.chunk, cut.blocks, call.inverse[0], call.scale, *call.inverse[1:]),
        {**flags, **cut.tile(), "MASKED": mask is not None, "NORMALIZED": call.normalized, "INVERT": invert},
    )  # fmt: skip
    return partial


def _invert(
    landmarks: Tensor, cu_landmarks: Tensor | None, core: Tensor, degrees: Tensor, call: Call, cut: Plan,
    flags: dict[str, Any], heads: int, rows: int,
) -> None:  # fmt: skip
    """Writes the inverse between more than 64 landmarks, and the row sums of A; matrix products throughout."""
    steps, factor, ridge, _ = call.inverse
    matrix = torch.empty_like(core)
    run(
        matrix_kernels.matrix, (rows, cut.blocks),
        (landmarks, cu_landmarks, matrix, degrees, *landmarks.stride(), heads, landmarks.shape[1], cut.blocks, ridge),
        {**without(flags, "MASKED"), **cut.matrix},
    )  # fmt: skip
    unit = factor / degrees.amax(1).square()
    iterate, error, other = matrix, torch.empty_like(core), torch.empty_like(core)
    for _ in range(steps):
        _multiply(iterate, matrix, error, cut, kind="error", unit=unit)
        _multiply(error, iterate, other, cut, kind="step")
        iterate, other = other, (torch.empty_like(core) if iterate is matrix else iterate)
    scale = unit[:, None, None]
    if call.normalized:
        root = degrees.clamp(min=1).rsqrt()
        scale = scale * root[:, :, None] * root[:, None, :]
    torch.mul(iterate, scale, out=core)


def _add(partial: Tensor, out: Tensor, cut: Plan) -> None:
    """The sum over the chunks, in a fixed order."""
    grid = (out.shape[0], cut.blocks)
    run(matrix_kernels.add_chunks, grid, (partial, out, cut.parts, cut.blocks), cut.matrix)


def _multiply(
    a: Tensor, b: Tensor, out: Tensor, cut: Plan, kind: str = "plain", unit: Tensor | None = None, turn: bool = False
) -> None:
    rows, size, columns = b.shape
    wide = min(64, columns)
    run(
        matrix_kernels.multiply, (rows, cut.blocks, columns // wide), (a, b, out, unit, size, columns),
        {"M": cut.block, "P": wide, "K": 32, "KIND": kind, "TURN": turn, "num_warps": 4, "num_stages": 3},
    )  # fmt: skip


_compiled: set[tuple] = set()


def _compile_ahead(
    q: Tensor, v: Tensor, landmarks: Tensor, masked: bool, packed: bool, call: Call, save: bool, cut: Plan
) -> None:
    """Before the first call of its kind, compile the kernels for short and for long images, and those of backward.

    They are compiled in parallel, on tensors without data, so that no later size has to wait.
    """
    key = (q.dtype, cut.width, q.shape[3], cut.block, cut.blocks > 1, call.normalized, masked, packed, save,
           *(t.stride()[3] == 1 for t in (q, v, landmarks)))  # fmt: skip
    if key in _compiled:
        return
    _compiled.add(key)
    meta, m = torch.device("meta"), landmarks.shape[1]
    with compiling():
        for tokens in (1, 2 * SHORT):
            qs, vs = (_blank(t, tokens) for t in (q, v))
            ls = _blank(landmarks, m)
            mask = torch.empty(1, tokens, dtype=torch.bool, device=meta) if masked else None
            ends = torch.empty(2, dtype=torch.int32, device=meta) if packed else None
            size = replace(call, longest=tokens if packed else 0, iterations=1)
            out, saved = forward(qs, vs, ls, mask, ends, ends, size, save)
            if save:
                dl = torch.empty(ls.shape, dtype=q.dtype, device=meta)
                outputs = (torch.empty_like(out), torch.empty_like(out), dl)
                backward(qs, vs, ls, torch.empty_like(out), mask, ends, ends, saved, size, outputs)


def _blank(t: Tensor, tokens: int) -> Tensor:
    """A tensor without data like one image of `t`, of so many tokens."""
    return torch.empty_strided((1, tokens, *t.shape[2:]), t.stride(), dtype=t.dtype, device="meta")
