"""Launches of the kernels of SOFT: how the work is cut follows from the shape by fixed rules; nothing is tuned at run
time."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from sightline.backend import BLOCK, LANDMARKS
from sightline.ops.common.arguments import Tokens
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
from sightline.ops.soft import backward_kernels, forward_kernels, matrix_kernels
from sightline.ops.soft.newton import RIDGE, STEP, steps_in

SHORT = 1024  # tokens up to which an image is one chunk
CHUNK = 512  # tokens of a chunk at least
PARTS = 64  # chunks at most
NEWTON = {"P": 128, "K": BLOCK, "MOST": LANDMARKS, "num_warps": 8, "num_stages": 3}  # tiles of the products beyond


@dataclass(frozen=True)
class Plan:
    """How the work is cut. Sums depend on `chunk` and `blocks`, which follow from the size of an image alone, so that
    an image gives the same bits in any batch; in a pack they follow from the largest image."""

    width: int  # W, channels up to a power of two
    blocks: int  # of landmarks
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

    def tile(self) -> Constants:
        return {"W": self.width, "M": BLOCK, "T": self.size, "num_warps": self.warps, "num_stages": self.stages}

    @property
    def queries(self) -> Constants:
        """For dq and dv in a separate pass."""
        return {**self.tile(), "M": 32 if self.width <= 64 else 16}

    @property
    def landmarks(self) -> Constants:
        """For dl in a separate pass."""
        tile = self.tile()
        if self.warps == 8:
            tile["num_stages"] = 1
        return {**tile, "M": BLOCK if self.width <= 32 else 32, "T": 32}

    @property
    def pairs(self) -> Constants:
        """For the gradient of A, block by block."""
        return {"W": self.width, "M": {64: 32, 128: 16}.get(self.width, BLOCK), "num_warps": 4, "num_stages": 1}

    @property
    def matrix(self) -> Constants:
        """For the kernels without tokens."""
        return {"W": self.width, "M": BLOCK, "num_warps": 4, "num_stages": 2}


def _width(dim: int) -> int:
    return max(16, triton.next_power_of_2(dim))


@lru_cache(maxsize=4096)
def plan(dim: int, tokens: int, landmarks: int, dtype: torch.dtype) -> Plan:
    """The configuration for a head dim, tokens and landmarks of an image (the most of a pack)."""
    width = _width(dim)
    blocks = triton.cdiv(landmarks, BLOCK)
    small = dtype == torch.bfloat16  # other types are multiplied as float32
    parts = 1 if tokens <= SHORT else min(PARTS, triton.cdiv(tokens, CHUNK))
    chunk = max(1, triton.cdiv(triton.cdiv(tokens, parts), 64)) * 64
    return Plan(
        width=width,
        blocks=blocks,
        size=64 if small or width <= 64 else 32,
        chunk=chunk,
        parts=max(1, triton.cdiv(tokens, chunk)),
        joint=small and blocks == 1,
        warps=4 if width <= 64 else 8,
        stages=3 if small and width <= 64 else 2,
    )


class Call(NamedTuple):
    """The options of one call; `longest` tokens and `most` landmarks of a pack, 0 for images of one size.

    Part of the key by which every call finds its program, hence a tuple.
    """

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


def saved_shape(rows: int, landmarks: int, dim: int, keep: bool) -> tuple[int, int]:
    """The shape of what backward needs, with one row per head of an image; without rows unless `keep`. See `_saved`.

    Sizes may be symbols of a graph, so this compares and divides only.
    """
    padded = (landmarks + BLOCK - 1) // BLOCK * BLOCK
    return rows if keep else 0, padded * (2 * _width(int(dim)) + padded + (1 if landmarks > BLOCK else 0))


def forward(
    q: Tensor, v: Tensor, landmarks: Tensor, mask: Tensor | None, cu: Tensor | None, cu_landmarks: Tensor | None,
    call: Call, save: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """out, and what backward needs; no rows of that unless `save`."""
    inputs = (q, v, landmarks, in_order(mask), in_order(cu), in_order(cu_landmarks))

    def plan(*layouts: Layout) -> Program:
        if not INTERPRETED:
            _compile_ahead(*layouts, call=call, save=save)
        return _forward(*layouts, call=call, save=save)

    out, saved = program_for("soft", inputs, (call, save), plan)(inputs, q.device)
    return out, saved


def backward(
    q: Tensor, v: Tensor, landmarks: Tensor, grad: Tensor, mask: Tensor | None, cu: Tensor | None,
    cu_landmarks: Tensor | None, saved: Tensor, call: Call,
) -> list[Tensor]:  # fmt: skip
    """dq, dv and d(landmarks)."""
    inputs = (q, v, landmarks, grad, in_order(mask), in_order(cu), in_order(cu_landmarks), saved)
    program = program_for("soft_backward", inputs, (call,), lambda *layouts: _backward(*layouts, call=call))
    return program(inputs, q.device)


@dataclass(frozen=True)
class _Work:
    """A program being planned, and what its launches share."""

    program: Program
    q: Layout
    landmarks: Layout
    cu: Layout | None
    cu_landmarks: Layout | None
    call: Call

    @property
    def cut(self) -> Plan:
        most = self.call.most or self.landmarks.shape[1]
        return plan(self.q.shape[3], self.call.longest or self.q.shape[1], most, self.q.dtype)

    @property
    def rows(self) -> int:
        """Images times heads."""
        return (self.q.shape[0] if self.cu is None else self.cu.shape[0] - 1) * self.q.shape[2]

    @property
    def padded(self) -> int:
        return self.cut.blocks * BLOCK

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Heads, tokens and landmarks, as the kernels count them."""
        return self.q.shape[2], self.q.shape[1], self.landmarks.shape[1]

    @property
    def flags(self) -> Constants:
        """Constants that most kernels have."""
        return {"D": self.q.shape[3], "VARLEN": self.cu is not None, "DOT": products(self.q.dtype)}

    def buffer(self, *shape: int) -> Layout:
        return self.program.buffer(shape, torch.float32)


def _saved(work: _Work, saved: Layout) -> tuple[Layout, Layout, Layout, Layout]:
    """Z, Y, K, and for several blocks of landmarks the row sums of A, one after another."""
    rows, padded, width = work.rows, work.padded, work.cut.width
    step = rows * padded
    return (
        saved.part((rows, padded, width)),
        saved.part((rows, padded, width), step * width),
        saved.part((rows, padded, padded), 2 * step * width),
        saved.part((rows, padded), step * (2 * width + padded)),
    )


def _forward(
    q: Layout, v: Layout, landmarks: Layout, mask: Layout | None, cu: Layout | None, cu_landmarks: Layout | None, *,
    call: Call, save: bool,
) -> Program:  # fmt: skip
    work = _Work(Program(6), q, landmarks, cu, cu_landmarks, call)
    cut, rows = work.cut, work.rows
    out = work.program.buffer(q.shape, q.dtype)
    size = saved_shape(rows, call.most or landmarks.shape[1], q.shape[3], True)
    saved = work.buffer(*size)
    sums, mixed, core, degrees = _saved(work, saved)
    partial = _sums(work, v, mask, core, invert=cut.blocks == 1)
    if cut.blocks == 1:
        work.program.launch(forward_kernels.forward_mix, (rows,), (partial, core, sums, mixed, cut.parts), cut.matrix)
    else:
        _add(work, partial, sums)
        _invert(work, core, degrees)
        _multiply(work, core, sums, mixed)
    work.program.launch(
        forward_kernels.forward_write, (rows, cut.parts),
        (Tokens.of(q), Tokens.of(landmarks), Tokens.of(out), cu, cu_landmarks, mixed, *work.sizes, cut.chunk,
         cut.blocks, call.scale),
        {**work.flags, **cut.tile(), "ONE": cut.blocks == 1},
    )  # fmt: skip
    work.program.results = out.slot, saved.slot if save else work.buffer(0, size[1]).slot
    return work.program


def _backward(
    q: Layout, v: Layout, landmarks: Layout, grad: Layout, mask: Layout | None, cu: Layout | None,
    cu_landmarks: Layout | None, saved: Layout, *, call: Call,
) -> Program:  # fmt: skip
    work = _Work(Program(8), q, landmarks, cu, cu_landmarks, call)
    cut, rows, padded = work.cut, work.rows, work.padded
    sums, mixed, core, degrees = _saved(work, saved)
    dq, dv, dl = (work.program.buffer(t.shape, t.dtype) for t in (q, v, landmarks))
    work.program.results = dq.slot, dv.slot, dl.slot
    mixed_grad = work.buffer(*mixed.shape)
    edges = work.buffer(1 if cut.together else cut.parts + 1, rows, padded, cut.width)
    partial = None if cut.short else _sums(work, grad, None, core, invert=False)
    if cut.blocks == 1:
        work.program.launch(
            backward_kernels.backward_mix, (rows,),
            (Tokens.of(q), Tokens.of(landmarks), Tokens.of(grad), cu, cu_landmarks, partial, sums, mixed, core,
             mixed_grad, edges, *work.sizes, cut.parts, call.scale),
            {**work.flags, **cut.tile(), "NORMALIZED": call.normalized, "WHOLE": cut.short},
        )  # fmt: skip
    else:
        assert partial is not None
        sums_grad = work.buffer(*sums.shape)
        _add(work, partial, sums_grad)
        _multiply(work, core, sums_grad, mixed_grad)
        blocks = padded // int(cut.pairs["M"])
        work.program.launch(
            matrix_kernels.backward_matrix, (rows, blocks),
            (Tokens.of(landmarks), cu_landmarks, degrees, sums, sums_grad, mixed, mixed_grad, edges, q.shape[2],
             landmarks.shape[1], blocks),
            {**work.flags, **cut.pairs, "NORMALIZED": call.normalized},
        )  # fmt: skip
    _tokens_back(work, v, grad, mask, mixed, mixed_grad, edges, (dq, dv, dl))
    if not cut.together:
        work.program.launch(
            backward_kernels.add_landmarks, (rows, cut.blocks),
            (edges, Tokens.of(dl), cu_landmarks, q.shape[2], landmarks.shape[1], cut.blocks, cut.parts + 1),
            {**without(work.flags, "DOT"), **cut.matrix},
        )  # fmt: skip
    return work.program


def _tokens_back(
    work: _Work, v: Layout, grad: Layout, mask: Layout | None, mixed: Layout, mixed_grad: Layout, edges: Layout,
    gradients: tuple[Layout, Layout, Layout],
) -> None:  # fmt: skip
    """dq and dv, and the part of dl that comes from the tokens."""
    cut, (dq, dv, dl) = work.cut, (Tokens.of(t) for t in gradients)
    tokens = tuple(Tokens.of(t) for t in (work.q, v, work.landmarks, grad))
    shared = (*tokens, mask, work.cu, work.cu_landmarks, mixed, mixed_grad)
    flags = {**work.flags, "MASKED": mask is not None}
    scale = work.call.scale
    if cut.joint:
        work.program.launch(
            backward_kernels.backward_tokens, (work.rows, cut.parts),
            (*shared, dq, dv, dl, edges, *work.sizes, cut.chunk, scale),
            {**flags, **cut.tile(), "WHOLE": cut.together},
        )  # fmt: skip
        return
    blocks = work.padded // int(cut.queries["M"])
    work.program.launch(
        matrix_kernels.backward_queries, (work.rows, cut.parts),
        (*shared, dq, dv, *work.sizes, cut.chunk, blocks, scale), {**flags, **cut.queries},
    )  # fmt: skip
    blocks = work.padded // int(cut.landmarks["M"])
    work.program.launch(
        matrix_kernels.backward_landmarks, (work.rows, cut.parts * blocks),
        (*shared, edges, *work.sizes, cut.chunk, blocks, scale), {**flags, **cut.landmarks},
    )  # fmt: skip


def _sums(work: _Work, v: Layout, mask: Layout | None, core: Layout, invert: bool) -> Layout:
    """P^T v of every chunk, (parts, rows, landmarks, W); with `invert` also writes `core`."""
    cut, call = work.cut, work.call
    partial = work.buffer(cut.parts, work.rows, work.padded, cut.width)
    steps, *inverse = call.inverse
    work.program.launch(
        forward_kernels.forward_sums, (work.rows, cut.parts * cut.blocks + invert),
        (Tokens.of(work.q), Tokens.of(v), Tokens.of(work.landmarks), mask, work.cu, work.cu_landmarks, partial, core,
         *work.sizes, cut.chunk, cut.blocks, steps, call.scale, *inverse),
        {**work.flags, **cut.tile(), "MASKED": mask is not None, "NORMALIZED": call.normalized, "INVERT": invert},
    )  # fmt: skip
    return partial


def _invert(work: _Work, core: Layout, degrees: Layout) -> None:
    """Writes the inverse between more than 64 landmarks, and the row sums of A; matrix products throughout."""
    steps, factor, ridge, _ = work.call.inverse
    cut, landmarks = work.cut, work.landmarks
    rows, size, _ = core.shape
    matrix, error, *iterates = (work.program.buffer((rows, 2, size, size), torch.float16) for _ in range(4))
    work.program.launch(
        matrix_kernels.matrix, (rows, cut.blocks),
        (Tokens.of(landmarks), work.cu_landmarks, matrix, degrees, work.q.shape[2], landmarks.shape[1], cut.blocks,
         ridge),
        {**work.flags, **cut.matrix},
    )  # fmt: skip
    grid = (rows * triton.cdiv(size, NEWTON["P"]) ** 2,)
    last = "scaled" if work.call.normalized else "last"
    iterate = matrix
    for step in range(steps):
        after, kind = (iterates[step % 2], "step") if step < steps - 1 else (core, last)
        for a, b, out, what in ((iterate, matrix, error, "error"), (error, iterate, after, kind)):
            args = (a, b, out, degrees, size // BLOCK, factor, step)
            work.program.launch(matrix_kernels.newton_product, grid, args, {**NEWTON, "KIND": what})
        iterate = after


def _add(work: _Work, partial: Layout, out: Layout) -> None:
    """The sum over the chunks, in a fixed order."""
    cut = work.cut
    work.program.launch(
        matrix_kernels.add_chunks, (work.rows, cut.blocks), (partial, out, cut.parts, cut.blocks), cut.matrix
    )


def _multiply(work: _Work, a: Layout, b: Layout, out: Layout) -> None:
    """a b for symmetric matrices a between the landmarks."""
    rows, size, columns = b.shape
    wide = min(64, columns)
    work.program.launch(
        matrix_kernels.multiply, (rows, work.cut.blocks, columns // wide), (a, b, out, size, columns),
        {"M": BLOCK, "P": wide, "K": 32, "num_warps": 4, "num_stages": 3},
    )  # fmt: skip


_compiled: set[tuple] = set()


def _compile_ahead(
    q: Layout, v: Layout, landmarks: Layout, mask: Layout | None, cu: Layout | None, cu_landmarks: Layout | None, *,
    call: Call, save: bool,
) -> None:  # fmt: skip
    """Before the first call of a signature, compile the kernels for short and for long images, and those of backward.

    They are compiled in parallel, so that no later size has to compile, except the first with more than 64 landmarks.
    """
    cut = _Work(Program(6), q, landmarks, cu, cu_landmarks, call).cut
    kind = (q.dtype, products(q.dtype), q.shape[3], call.normalized, mask is None, cu is None, save)
    steps = (t.strides[3] == 1 for t in (q, v, landmarks))
    key = (torch.cuda.current_device(), *kind, cut.width, cut.blocks > 1, *steps)
    if key in _compiled:
        return
    _compiled.add(key)
    programs = []
    for tokens in (1, SHORT + 1):
        qs, vs = (replace(t, shape=(1, tokens, *t.shape[2:])) for t in (q, v))
        ls = replace(landmarks, shape=(1, *landmarks.shape[1:]))
        size = call._replace(longest=tokens if cu is not None else 0, iterations=2)
        programs.append(_forward(qs, vs, ls, mask, cu, cu_landmarks, call=size, save=save))
        if save:
            saved = Layout(7, saved_shape(1, call.most or landmarks.shape[1], q.shape[3], True), (1, 1), torch.float32)
            grad = qs.part(qs.shape)
            programs.append(_backward(qs, vs, ls, grad, mask, cu, cu_landmarks, saved, call=size))
    compile_all(programs)
