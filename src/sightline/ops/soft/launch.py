"""Launches of the kernels of SOFT: how the work is cut follows from the shape by fixed rules; nothing is tuned at run
time. Numbers of tokens and landmarks may be symbols of a graph."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from sightline import backend
from sightline.backend import BLOCK, LANDMARKS, LARGE, MEDIUM
from sightline.ops.common.arguments import head_shape, strides, sym_max, sym_min
from sightline.ops.common.launching import Constant, compile_all, empty, launch, recording
from sightline.ops.soft import backward_kernels, forward_kernels, matrix_kernels
from sightline.ops.soft.newton import RIDGE, STEP, steps_in

SHORT = 1024  # tokens up to which an image is one chunk
CHUNK = 512  # tokens of a chunk at least
PARTS = 64  # chunks at most
NEWTON = {
    "P": 128,
    "K": BLOCK,
    "MOST": LANDMARKS,
    "num_warps": 8,
}  # of products between more than BLOCK landmarks

Constants = Mapping[str, Constant]


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
    roomy: bool  # as much shared memory as an H200

    @property
    def short(self) -> bool:
        return self.parts == 1 and self.blocks == 1

    @property
    def together(self) -> bool:
        """Whether backward has one program for all of a head's dl."""
        return self.short and self.joint

    @property
    def tile(self) -> Constants:
        return {"W": self.width, "M": BLOCK, "T": self.size, "num_warps": self.warps, "num_stages": self.stages}

    @property
    def tokens(self) -> Constants:
        """For dq, dv and dl in one pass."""
        return self.tile if self.roomy else {**self.tile, "T": 32}

    @property
    def queries(self) -> Constants:
        """For dq and dv in a separate pass."""
        return {**self.tile, "M": 32 if self.width <= 64 else 16}

    @property
    def landmarks(self) -> Constants:
        """For dl in a separate pass."""
        stages = 1 if self.warps == 8 else self.stages
        return {**self.tile, "M": BLOCK if self.width <= 32 else 32, "T": 32, "num_stages": stages}

    @property
    def pairs(self) -> Constants:
        """For the gradient of A, block by block."""
        return {"W": self.width, "M": {64: 32, 128: 16}.get(self.width, BLOCK), "num_warps": 4, "num_stages": 1}

    @property
    def matrix(self) -> Constants:
        """For the kernels without tokens."""
        return {"W": self.width, "M": BLOCK, "num_warps": 4, "num_stages": 2}

    @property
    def newton(self) -> Constants:
        """For products between more than BLOCK landmarks."""
        return {**NEWTON, "num_stages": 3 if self.roomy else 2}


def _width(dim: int) -> int:
    return max(16, triton.next_power_of_2(dim))


def plan(dim: int, tokens: int, landmarks: int, dtype: torch.dtype, shared: int = LARGE) -> Plan:
    """The configuration for a head dim, tokens and landmarks of an image (the most of a pack).

    As measured on an H200; with fewer `shared` bytes of memory than it has, wide tiles are half as long.
    """
    width = _width(dim)
    blocks = triton.cdiv(landmarks, BLOCK)
    small = dtype == torch.bfloat16  # other types are multiplied as float32
    parts = 1 if tokens <= SHORT else sym_min(PARTS, triton.cdiv(tokens, CHUNK))
    chunk = sym_max(1, triton.cdiv(triton.cdiv(tokens, parts), 64)) * 64
    size = 64 if small or width <= 64 else 32
    return Plan(
        width=width,
        blocks=blocks,
        size=32 if shared < MEDIUM and width == 64 and dtype == torch.float32 else size,
        chunk=chunk,
        parts=sym_max(1, triton.cdiv(tokens, chunk)),
        joint=small and blocks == 1 and (width <= 64 or shared >= MEDIUM),
        warps=4 if width <= 64 else 8,
        stages=3 if small and width <= 64 else 2,
        roomy=shared >= LARGE,
    )


class Options(NamedTuple):
    """How tokens are mixed; `dot` is how kernels multiply (`dot_precision`)."""

    scale: float
    normalized: bool
    iterations: int
    dot: str

    @property
    def inverse(self) -> tuple[int, float, float, float]:
        """Newton's steps, the first step's factor, what is added to the diagonal, and the scale of the iterate."""
        steps = steps_in(self.iterations, torch.float32)
        return steps, STEP[self.normalized], 0.0 if self.normalized else RIDGE, 0.5 ** max(0, (steps - 19) // 2)


@dataclass(frozen=True)
class Call:
    """The tensors and options of a call that most launches share.

    `mask` is (B, N). For packed images, `cu` and `cu_landmarks` have the ends of their tokens and landmarks, `longest`
    and `most` the largest numbers of them in an image, which are 0 for images of one size.
    """

    q: Tensor
    landmarks: Tensor
    mask: Tensor | None
    cu: Tensor | None
    cu_landmarks: Tensor | None
    longest: int
    most: int
    options: Options

    @property
    def cut(self) -> Plan:
        dim, shared = head_shape(self.q)[1], backend.shared_memory(self.q.device)
        return plan(dim, self.longest or self.q.shape[1], self.count, self.q.dtype, shared)

    @property
    def count(self) -> int:
        """Landmarks of an image, at most."""
        return self.most or self.landmarks.shape[1]

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
    def flags(self) -> dict[str, Constant]:
        """Constants that most kernels have."""
        return {"D": head_shape(self.q)[1], "VARLEN": self.cu is not None, "DOT": self.options.dot}

    def buffer(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return empty(shape, dtype, self.q.device)


class Saved(NamedTuple):
    """What backward needs: Z, Y (rows, padded, W), K (rows, padded, padded), and the row sums of A (rows, padded)."""

    sums: Tensor
    mixed: Tensor
    core: Tensor
    degrees: Tensor


def forward(call: Call, v: Tensor, save: bool) -> tuple[Tensor, Saved]:
    """out, and what backward needs."""
    if recording():
        _compile_ahead(call, v, save)
    cut, rows = call.cut, call.rows
    sums, mixed = (call.buffer(rows, call.padded, cut.width) for _ in range(2))
    core = call.buffer(rows, call.padded, call.padded)
    degrees = call.buffer(rows if cut.blocks > 1 else 0, call.padded)
    partial = _sums(call, v, call.mask, core, invert=cut.blocks == 1)
    if cut.blocks == 1:
        launch(forward_kernels.forward_mix, (rows,), (partial, core, sums, mixed, cut.parts), cut.matrix)
    else:
        _add(call, partial, sums)
        _invert(call, core, degrees)
        _multiply(call, core, sums, mixed)
    out = call.buffer(*call.q.shape, dtype=call.q.dtype)
    launch(
        forward_kernels.forward_write, (rows, cut.parts),
        (*strides(call.q), *strides(call.landmarks), *strides(out), call.cu, call.cu_landmarks, mixed, *call.sizes,
         cut.chunk, cut.blocks, call.options.scale),
        {**call.flags, **cut.tile, "ONE": cut.blocks == 1},
    )  # fmt: skip
    return out, Saved(sums, mixed, core, degrees)


def backward(call: Call, v: Tensor, grad: Tensor, saved: Saved) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dv and d(landmarks)."""
    cut, rows, padded, options = call.cut, call.rows, call.padded, call.options
    sums, mixed, core, degrees = saved
    marks = strides(call.landmarks)
    mixed_grad = call.buffer(*mixed.shape)
    dl_parts = call.buffer(1 if cut.together else cut.parts + 1, rows, padded, cut.width)
    partial = None if cut.short else _sums(call, grad, None, core, invert=False)
    if cut.blocks == 1:
        launch(
            backward_kernels.backward_mix, (rows,),
            (*strides(call.q), *marks, *strides(grad), call.cu, call.cu_landmarks, partial, sums, mixed, core,
             mixed_grad, dl_parts, *call.sizes, cut.parts, options.scale),
            {**call.flags, **cut.tile, "NORMALIZED": options.normalized, "WHOLE": cut.short},
        )  # fmt: skip
    else:
        assert partial is not None
        sums_grad = call.buffer(*sums.shape)
        _add(call, partial, sums_grad)
        _multiply(call, core, sums_grad, mixed_grad)
        blocks = padded // int(cut.pairs["M"])
        launch(
            matrix_kernels.backward_matrix, (rows, blocks),
            (*marks, call.cu_landmarks, degrees, sums, sums_grad, mixed, mixed_grad, dl_parts, call.q.shape[2],
             call.landmarks.shape[1], blocks),
            {**call.flags, **cut.pairs, "NORMALIZED": options.normalized},
        )  # fmt: skip
    dq, dv, dl = (call.buffer(*t.shape, dtype=t.dtype) for t in (call.q, v, call.landmarks))
    _tokens_backward(call, v, grad, mixed, mixed_grad, dl_parts, (dq, dv, dl))
    if not cut.together:
        launch(
            backward_kernels.add_landmarks, (rows, cut.blocks),
            (dl_parts, *strides(dl), call.cu_landmarks, call.q.shape[2], call.landmarks.shape[1], cut.blocks,
             cut.parts + 1),
            {"D": head_shape(call.q)[1], "VARLEN": call.cu is not None, **cut.matrix},
        )  # fmt: skip
    return dq, dv, dl


def _tokens_backward(
    call: Call, v: Tensor, grad: Tensor, mixed: Tensor, mixed_grad: Tensor, dl_parts: Tensor,
    gradients: tuple[Tensor, Tensor, Tensor],
) -> None:  # fmt: skip
    """dq and dv, and the part of dl that comes from the tokens."""
    cut, scale = call.cut, call.options.scale
    dq, dv, dl = (strides(t) for t in gradients)
    tokens = [part for t in (call.q, v, call.landmarks, grad) for part in strides(t)]
    shared = (*tokens, call.mask, call.cu, call.cu_landmarks, mixed, mixed_grad)
    flags = {**call.flags, "MASKED": call.mask is not None}
    if cut.joint:
        launch(
            backward_kernels.backward_tokens, (call.rows, cut.parts),
            (*shared, *dq, *dv, *dl, dl_parts, *call.sizes, cut.chunk, scale),
            {**flags, **cut.tokens, "WHOLE": cut.together},
        )  # fmt: skip
        return
    blocks = call.padded // int(cut.queries["M"])
    launch(
        matrix_kernels.backward_queries, (call.rows, cut.parts),
        (*shared, *dq, *dv, *call.sizes, cut.chunk, blocks, scale), {**flags, **cut.queries},
    )  # fmt: skip
    blocks = call.padded // int(cut.landmarks["M"])
    launch(
        matrix_kernels.backward_landmarks, (call.rows, cut.parts * blocks),
        (*shared, dl_parts, *call.sizes, cut.chunk, blocks, scale), {**flags, **cut.landmarks},
    )  # fmt: skip


def _sums(call: Call, v: Tensor, mask: Tensor | None, core: Tensor, invert: bool) -> Tensor:
    """P^T v of every chunk, (parts, rows, landmarks, W); with `invert` also writes `core`."""
    cut, options = call.cut, call.options
    partial = call.buffer(cut.parts, call.rows, call.padded, cut.width)
    steps, *inverse = options.inverse
    launch(
        forward_kernels.forward_sums, (call.rows, cut.parts * cut.blocks + invert),
        (*strides(call.q), *strides(v), *strides(call.landmarks), mask, call.cu, call.cu_landmarks, partial, core,
         *call.sizes, cut.chunk, cut.blocks, steps, options.scale, *inverse),
        {**call.flags, **cut.tile, "MASKED": mask is not None, "NORMALIZED": options.normalized, "INVERT": invert},
    )  # fmt: skip
    return partial


def _invert(call: Call, core: Tensor, degrees: Tensor) -> None:
    """Writes the inverse between more than 64 landmarks, and the row sums of A; matrix products throughout."""
    steps, factor, ridge, _ = call.options.inverse
    cut = call.cut
    rows, size, _ = core.shape
    matrix, error, *iterates = (call.buffer(rows, 2, size, size, dtype=torch.float16) for _ in range(4))
    launch(
        matrix_kernels.matrix, (rows, cut.blocks),
        (*strides(call.landmarks), call.cu_landmarks, matrix, degrees, call.q.shape[2], call.landmarks.shape[1],
         cut.blocks, ridge),
        {**call.flags, **cut.matrix},
    )  # fmt: skip
    tiles = triton.cdiv(size, NEWTON["P"])
    last = "scaled" if call.options.normalized else "last"
    iterate = matrix
    for step in range(steps):
        after, kind = (iterates[step % 2], "step") if step < steps - 1 else (core, last)
        for a, b, out, what in ((iterate, matrix, error, "error"), (error, iterate, after, kind)):
            args = (a, b, out, degrees, size // BLOCK, factor, step)
            launch(matrix_kernels.newton_product, (rows * tiles * tiles,), args, {**cut.newton, "KIND": what})
        iterate = after


def _add(call: Call, partial: Tensor, out: Tensor) -> None:
    """The sum over the chunks, in a fixed order."""
    cut = call.cut
    launch(matrix_kernels.add_chunks, (call.rows, cut.blocks), (partial, out, cut.parts, cut.blocks), cut.matrix)


def _multiply(call: Call, a: Tensor, b: Tensor, out: Tensor) -> None:
    """a b for symmetric matrices a between the landmarks."""
    rows, size, columns = b.shape
    wide = min(64, columns)
    launch(
        matrix_kernels.multiply, (rows, call.cut.blocks, columns // wide), (a, b, out, size, columns),
        {"M": BLOCK, "P": wide, "K": 32, "num_warps": 4, "num_stages": 3},
    )  # fmt: skip


_compiled: set[tuple] = set()


def _compile_ahead(call: Call, v: Tensor, save: bool) -> None:
    """Before the first call of a signature, compile the kernels for short and for long images, and those of backward.

    They are compiled in parallel, so that no later size has to compile, except the first with more than 64 landmarks.
    """
    cut, options, heads, dim = call.cut, call.options, *call.q.shape[2:]
    kind = (call.q.dtype, options.dot, dim, options.normalized, call.mask is None, call.cu is None, save)
    key = (torch.cuda.current_device(), *kind, cut.width, cut.blocks > 1)
    if key in _compiled:
        return
    _compiled.add(key)

    def meta(t: Tensor | None, *shape: int) -> Tensor | None:
        return None if t is None else torch.empty(shape, dtype=t.dtype, device="meta")

    def run(tokens: int) -> None:
        q, values, grad = (torch.empty((1, tokens, heads, dim), dtype=v.dtype, device="meta") for _ in range(3))
        landmarks = torch.empty((1, call.count, heads, dim), dtype=v.dtype, device="meta")
        size = Call(
            q, landmarks, meta(call.mask, 1, tokens), meta(call.cu, 2), meta(call.cu_landmarks, 2),
            tokens if call.cu is not None else 0, call.most, options._replace(iterations=2),
        )  # fmt: skip
        _, saved = forward(size, values, save)
        if save:
            backward(size, values, grad, saved)

    compile_all([lambda: run(1), lambda: run(SHORT + 1)])
