"""Launches of the kernels of InLine and linear attention."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from sightline import backend
from sightline.ops.checks import is_symbolic
from sightline.ops.common.arguments import head_shape, strides, sym_max
from sightline.ops.common.kernels import add_parts
from sightline.ops.common.launching import Argument, Constant, compile_all, empty, launch, recording
from sightline.ops.linear import backward_kernels, forward_kernels, near_kernels, weights_kernels
from sightline.ops.linear import plan as planning
from sightline.ops.linear.plan import Plan, padded

NEAR = {"STAGES": 3, "num_warps": 4}  # windows
ADD = {"PARTS": 8, "BLOCK": 512}  # tile of the sum over parts
IMAGES, PARTS = 16, 4  # images and parts of their sums whose gradients are taken together
ALONE = 64  # images, if there is one part


class Images(NamedTuple):
    """What a call knows about its images besides their tokens.

    `mask` is (B, M). For packed images, `cu` has the ends of their tokens, `grids` (images, 2) their grids, `longest`
    the most tokens and `grid` the largest sides; `longest` is 0 for images of one size.
    """

    mask: Tensor | None = None
    cu: Tensor | None = None
    grids: Tensor | None = None
    longest: int = 0
    grid: tuple[int, int] = (0, 0)
    prefix: int = 0


class Options(NamedTuple):
    """How tokens are mixed; `dot` is how kernels multiply (`dot_precision`)."""

    phi: str
    linear: bool
    scale: float
    eps: float
    dot: str


class Layers(NamedTuple):
    """What the weights of the residual are made from: tokens (B, N, C); layers (C, D), (C,), (9 C, D), (9 C,).

    `bias` (3 C,) is that of the packed projection if its gradient is wanted as well.
    """

    x: Tensor
    w1: Tensor
    b1: Tensor
    w2: Tensor
    b2: Tensor
    bias: Tensor | None = None


class Readers(NamedTuple):
    """A few queries (B, r, H, D) that attend to all keys by softmax.

    What the first `agents` of them gather, all tokens ask them for by softmax, in place of the mean of the values. The
    others are the queries of the first tokens, whose output is what they gather. With a `window`, tokens attend to
    their own window by the same softmax, in which the agents have keys by `far`: (H, D), (H, 1) and (H, 1), see
    `near_kernels`.
    """

    queries: Tensor
    agents: int
    far: tuple[Tensor | None, ...]
    window: int


class Sums(NamedTuple):
    """What is still to be added up after the backward pass, in float32.

    `taps` are dw (parts, images, 9, C), None without weights. `columns` (1 + pieces, images, C) are the sums of dq
    over the tokens and, in pieces, of dv.
    """

    taps: Tensor | None
    columns: Tensor | None


class Forward(NamedTuple):
    """The output, the row of sums of every image, the weights (images, 9, C), and mean tokens (images, C) if made."""

    out: Tensor
    sums: Tensor
    weights: Tensor | None
    mean: Tensor | None


def row_size(heads: int, dim: int) -> int:
    """Numbers in the row of sums of an image; see `forward_kernels`."""
    return heads * dim * (dim + 4) + 4


def forward(
    q: Tensor, k: Tensor, v: Tensor, weights: Tensor | None, layers: Layers | None, images: Images, options: Options,
    save: bool, shape: Sequence[int], readers: Readers | None = None,
) -> Forward:  # fmt: skip
    """Tokens (B, N, H, D) with contiguous heads; `shape` is that of the output.

    Unless `save`, what backward needs may have no rows. With `readers`, which have no backward, queries and keys are of
    the same tokens, all of which count.
    """
    if recording():
        _compile_ahead(q, k, v, weights, layers, images, options, save, len(shape) == 3, readers)
    (heads, dim), tokens, keys, device = head_shape(q), q.shape[1], k.shape[1], q.device
    count = _count(q, images)
    queries, agents, far, window = readers or (None, 0, (), 0)
    # In a graph for any number of tokens both ways are launched, and the one that does not apply has no programs.
    symbolic = not save and not images.longest and is_symbolic(tokens, keys)
    cut = _plan(q, k, images, options, readers is not None, symbolic)
    either = symbolic and not window
    few = planning.shortness(sym_max(tokens, keys)) if either else int(cut.short and not window)
    number = 0 if queries is None else int(queries.shape[1])
    residual = weights is not None or layers is not None
    line = residual and readers is None and _is_line(images)
    flags = _flags(q, residual, images, options)
    made: dict[str, Constant] = {"MADE": layers is not None}
    size = row_size(heads, dim)
    out = empty(shape, q.dtype, device)
    mean = None
    if layers is not None:
        rows = count if save or not cut.short or window else 0
        weights, mean = (empty((rows, *s, heads * dim), torch.float32, device) for s in ((9,), ()))
    x: tuple[Argument, ...] = (None, 0, 0)
    parameters: tuple[Argument, ...] = (None,) * 4
    if layers is not None:
        x, parameters = strides(layers.x), layers[1:5]
    layout = (images.mask, images.cu, images.grids)
    reading: dict[str, Constant] = {"A": padded(number), "AGENTS": agents, "FIRST": number - agents}
    numbers = (*images.grid, images.prefix, options.scale, options.eps)
    if either or few:
        sums = empty((count if save else 0, size), torch.float32, device)
        tile = cut.whole if residual else cut.queries
        launch(
            forward_kernels.forward_short, (few * (heads // tile.heads), count),
            (*strides(q), *strides(k), *strides(v), *x, out, weights, *parameters, mean, *layout, queries, sums, heads,
             tokens, keys, *numbers),
            {"T": tile.size, "X": cut.write.size, "SAVE": save, "STAGES": cut.write.stages, "LINE": line, **flags,
             **reading, **made, **tile.constants},
        )  # fmt: skip
        if not either:
            return Forward(out, sums, weights, mean)
    assert not window or images.prefix == number - agents
    if window and cut.near and not residual and not save:
        launch(
            near_kernels.near_short, (heads, count),
            (*strides(q), *strides(k), *strides(v), out, queries, *far, heads, tokens, *images.grid, options.scale),
            _near(dim, readers, images.prefix, options),
        )  # fmt: skip
        return Forward(out, empty((0, size), torch.float32, device), None, None)
    many = 1 - few
    parts = triton.cdiv(images.longest or keys, cut.chunk)
    partial = empty((parts, count, size), torch.float32, device)
    sums_x = None if layers is None else empty((parts, count, heads * dim), torch.float32, device)
    read = values = None
    if readers is not None:
        read = empty((parts, count, heads, padded(number), dim + 2), torch.float32, device)
        values = empty((count, agents, heads * dim), q.dtype, device)
    launch(
        forward_kernels.forward_partial, (many * (heads // cut.sums.heads), count, parts),
        (*strides(k), *strides(v), *x, images.mask, images.cu, queries, partial, sums_x, read, heads, keys, cut.chunk,
         options.scale),
        {"T": cut.sums.size, **_without(flags, "RESIDUAL"), **reading, **made, **cut.sums.constants},
    )  # fmt: skip
    sums = empty((count, size), torch.float32, device)
    adders = triton.cdiv(count * size, ADD["BLOCK"])
    makers = 0 if layers is None else count * (heads // cut.sums.heads) * 9
    launch(
        forward_kernels.forward_finish, (many * (adders + makers + (0 if readers is None else count * heads)),),
        (partial, sums, sums_x, weights, *parameters, mean, read, values, out, parts, count * size, adders, makers,
         count, keys, heads),
        {"D": dim, "GROUP": cut.sums.heads, "W": cut.sums.width, "WIDE": padded(dim), "num_warps": 4, **ADD, **made,
         **reading},
    )  # fmt: skip

    def write(walks: bool, adds: bool) -> None:
        """The output by tokens, or by grid rows with the residual; or the residual, added to it."""
        tile = cut.write if walks else cut.queries
        pieces, chunk = cut.pieces(tile, images.grid, images.longest or tokens, heads * count, walks, line)
        asking = {**reading, "AGENTS": 0, "FIRST": 0} if adds else reading
        launch(
            forward_kernels.forward_write, (many * (heads // tile.heads), count, pieces),
            (*strides(q), *strides(v), out, weights, *layout, queries, values, sums, heads, tokens, keys, chunk,
             *numbers),
            {"T": cut.queries.size, "X": tile.size, "STAGES": tile.stages, **flags, "RESIDUAL": walks, "LINE": line,
             "ADD": adds, **asking, **tile.constants},
        )  # fmt: skip

    if window:
        launch(
            near_kernels.near_write, (heads, count, triton.cdiv(images.grid[0], window)),
            (*strides(q), *strides(k), *strides(v), out, queries, values, *far, sums, heads, tokens,
             *images.grid, options.scale),
            _near(dim, readers, images.prefix, options),
        )  # fmt: skip
    elif agents or not residual:
        write(walks=False, adds=False)
    if residual:
        write(walks=True, adds=agents > 0)
    return Forward(out, sums, weights, mean)


def backward(
    q: Tensor, k: Tensor, v: Tensor, grad: Tensor, weights: Tensor | None, sums: Tensor, images: Images,
    options: Options, gradients: Sequence[Tensor], columns: bool = False,
) -> Sums:  # fmt: skip
    """Writes `gradients`, dq, dk and dv or the packed (B, N, 3 C) that holds them one after another.

    `columns` are sums that InLine attention with the identity and with weights can return.
    """
    (heads, dim), tokens, keys, device = head_shape(q), q.shape[1], k.shape[1], q.device
    count = _count(q, images)
    cut = _plan(q, k, images, options)
    flags = _flags(q, weights is not None, images, options)
    packed = len(gradients) == 1
    dq, dk, dv = (gradients[0], None, None) if packed else gradients
    base = gradients[0] if packed else gradients[1]  # where dk lies
    starts = (heads * dim, 2 * heads * dim) if packed else (0, 0)
    layout = (images.mask, images.cu, images.grids)
    numbers = (*images.grid, images.prefix, options.scale)
    passes, line = _key_passes(cut, weights), _is_line(images)
    if cut.tiny and len(passes) == 1:
        strips = sym_max(1, triton.cdiv(images.grid[1], cut.back.size))
        taps = None if weights is None else empty((strips, count, 9, heads * dim), torch.float32, device)
        total = empty((2, count, heads * dim), torch.float32, device) if columns else None
        launch(
            backward_kernels.backward_short, (heads // cut.back.heads, count, 1 if weights is None else 2),
            (*strides(q), *strides(k), *strides(v), *strides(grad), weights, *layout, sums, *strides(dq), dk, dv,
             base.stride(0), *starts, taps, total, strips, heads, tokens, keys, *numbers, options.eps),
            {"T": cut.queries.size, "X": cut.back.size, "STAGES": cut.back.stages, **flags, **cut.back.constants},
        )  # fmt: skip
        return Sums(taps, total)
    parts = triton.cdiv(images.longest or tokens, cut.chunk)
    d_sums = empty((parts, count, heads * dim * (dim + 1)), torch.float32, device)
    launch(
        backward_kernels.backward_queries, (heads // cut.queries.heads, count, parts),
        (*strides(q), *strides(grad), images.cu, sums, *strides(dq), d_sums, heads, tokens, cut.chunk, options.scale,
         options.eps),
        {"T": cut.queries.size, **_without(flags, "RESIDUAL", "MASKED"), **cut.queries.constants},
    )  # fmt: skip
    if not cut.short:
        d_sums = sum_parts(d_sums, torch.float32)
    taps = total = None
    for wanted, used in passes:
        tile = cut.queries if used is None else cut.line if line else cut.keys
        pieces, chunk = triton.cdiv(images.longest or keys, cut.chunk), cut.chunk
        if used is not None:
            height, width = images.grid
            wide, chunk = (planning.LINE, planning.LINE) if line else (tile.size, cut.rows)
            pieces = sym_max(1, triton.cdiv(width, wide)) * sym_max(1, triton.cdiv(height, cut.rows))
            taps = empty((pieces, count, 9, heads * dim), torch.float32, device)
            total = empty((1 + pieces, count, heads * dim), torch.float32, device) if columns else None
        launch(
            backward_kernels.backward_keys, (heads // tile.heads, count, pieces),
            (*strides(k), *strides(v), *strides(grad), used, *layout, sums, d_sums, *strides(base), dv, *starts, taps,
             total, heads, tokens, keys, chunk, *numbers),
            {"T": cut.queries.size, "X": tile.size, "STAGES": tile.stages, "DK": "k" in wanted, "DV": "v" in wanted,
             **flags, "RESIDUAL": used is not None, "LINE": used is not None and line, **tile.constants},
        )  # fmt: skip
    return Sums(taps, total)


def layers_backward(
    sums: Sums, mean: Tensor, parameters: Sequence[Tensor], bias: Tensor | None, tokens: int, dtype: torch.dtype,
    heads: int, dot: str,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The gradients of each of an image's `tokens`, (images, C), of the parameters, and of the bias (3 C,) of the
    packed projection, empty if it is None."""
    assert sums.taps is not None
    count, device = mean.shape[0], mean.device
    channels = int(mean.shape[1])
    dim = channels // heads
    parts = sums.taps.shape[0]
    alone, wide = isinstance(parts, int) and parts == 1, dim > 64
    together = ALONE if alone and not wide else IMAGES
    constants: dict[str, Constant] = {
        "D": dim, "W": padded(dim), "IMAGES": together, "PARTS": 1 if alone or wide else PARTS, "DOT": dot,
        "num_warps": max(4, padded(dim) // 16), "num_stages": 2 if dim > 32 else 4 if alone else 3,
    }  # fmt: skip
    d_token = empty(mean.shape, dtype, device)
    gradients = [empty(t.shape, t.dtype, device) for t in parameters]
    d_bias = None if bias is None else empty(bias.shape, bias.dtype, device)
    launch(
        weights_kernels.layers_back, (heads, 10 + triton.cdiv(count, together) + (0 if bias is None else 2)),
        (sums.taps, mean, *parameters[:3], sums.columns, d_token, *gradients, d_bias, parts,
         0 if sums.columns is None else sums.columns.shape[0] - 1, count, tokens, channels),
        constants,
    )  # fmt: skip
    return d_token, *gradients, empty((0,), torch.float32, device) if d_bias is None else d_bias


def sum_parts(parts: Tensor, dtype: torch.dtype) -> Tensor:
    """The sum over the first dimension, in a fixed order."""
    if parts.shape[0] == 1 and parts.dtype == dtype:
        return parts[0]
    out = empty(parts.shape[1:], dtype, parts.device)
    launch(add_parts, (triton.cdiv(out.numel(), ADD["BLOCK"]),), (parts, out, parts.shape[0], out.numel()), ADD)
    return out


_compiled: set[tuple] = set()


def _compile_ahead(q: Tensor, k: Tensor, v: Tensor, weights: Tensor | None, layers: Layers | None, images: Images,
                  options: Options, save: bool, packed: bool, readers: Readers | None) -> None:  # fmt: skip
    """Before the first call of a signature, compile the kernels for short and for long images, and those of backward.

    They are compiled in parallel, so that no later size has to compile.
    """
    flags = _flags(q, weights is not None or layers is not None, images, options)
    far = () if readers is None else readers.far
    kinds = [None if t is None else t.dtype for t in (q, weights, *(layers or ()), *far)]
    tiles = _plan(q, k, images, options, readers is not None).tiles
    reading = None if readers is None else (readers.queries.shape[1], readers.agents, readers.window)
    line = _is_line(images)
    key = (torch.cuda.current_device(), *flags.values(), *tiles, *kinds, save, packed, reading, line)
    if key in _compiled:
        return
    _compiled.add(key)
    heads, dim = q.shape[2:]

    def run(side: int) -> None:
        tokens = side * side
        rows = 1 if line else side
        grid = (rows, tokens // rows) if weights is not None or layers is not None else (0, 0)
        size = images._replace(
            grid=grid, longest=tokens if images.cu is not None else 0, mask=_meta(images.mask, 1, tokens),
            cu=_meta(images.cu, 2), grids=_meta(images.grids, 1, 2),
        )  # fmt: skip
        a, b, c = (_shapeless(t).as_strided((1, tokens, heads, dim), t.stride()) for t in (q, k, v))
        taps = _meta(weights, 1, 9, heads * dim)
        made = layers
        if layers is not None:
            x = _shapeless(layers.x).as_strided((1, tokens, heads * dim), layers.x.stride())
            w1, b1, w2, b2 = (torch.empty_like(t, device="meta") for t in layers[1:5])
            made = Layers(x, w1, b1, w2, b2, _meta(layers.bias, 3 * heads * dim))
        given = None
        if readers is not None:
            there = tuple(None if t is None else torch.empty_like(t, device="meta") for t in far)
            given = readers._replace(queries=torch.empty_like(readers.queries[:1], device="meta"), far=there)
        done = forward(a, b, c, taps, made, size, options, save, a.shape, given)
        if save:
            grad = torch.empty((1, tokens, heads, dim), dtype=q.dtype, device="meta")
            grads = [grad.new_empty((1, tokens, 3 * heads * dim))] if packed else [grad] * 3
            bias = None if made is None else made.bias
            left = backward(a, b, c, grad, done.weights, done.sums, size, options, grads, bias is not None)
            if made is not None:
                assert done.mean is not None
                layers_backward(left, done.mean, made[1:5], bias, tokens, made.x.dtype, heads, options.dot)

    compile_all([lambda: run(2), lambda: run(20), lambda: run(33)])


def _shapeless(t: Tensor) -> Tensor:
    """A meta tensor of the same dtype that `as_strided` can give any shape."""
    return torch.empty(2**40, dtype=t.dtype, device="meta")


def _meta(t: Tensor | None, *shape: int) -> Tensor | None:
    return None if t is None else torch.empty(shape, dtype=t.dtype, device="meta")


def _key_passes(cut: Plan, weights: Tensor | None) -> list[tuple[str, Tensor | None]]:
    """What a pass over the keys makes, and the weights that it takes."""
    return [("k", None), ("v", weights)] if cut.split else [("kv", weights)]


def _is_line(images: Images) -> bool:
    """Whether the grid has one row, so that six of the nine taps are outside of it."""
    return not is_symbolic(images.grid[0]) and images.grid[0] == 1


def _count(q: Tensor, images: Images) -> int:
    return q.shape[0] if images.cu is None else images.cu.shape[0] - 1


def _plan(
    q: Tensor, k: Tensor, images: Images, options: Options, readers: bool = False, either: bool = False
) -> Plan:  # fmt: skip
    heads, dim = head_shape(q)
    tokens = images.longest or sym_max(q.shape[1], k.shape[1])
    shared = backend.shared_memory(q.device)
    return planning.plan(heads, dim, tokens, images.grid, q.dtype, options.linear, shared, readers, either)


def _flags(q: Tensor, residual: bool, images: Images, options: Options) -> dict[str, Constant]:
    """The constants that all kernels share."""
    return {
        "D": head_shape(q)[1], "PHI": options.phi, "LINEAR": options.linear, "RESIDUAL": residual,
        "MASKED": images.mask is not None, "VARLEN": images.cu is not None, "DOT": options.dot,
    }  # fmt: skip


def _near(dim: int, readers: Readers | None, prefix: int, options: Options) -> dict[str, Constant]:
    """The constants of the kernels of windows."""
    assert readers is not None
    side, agents = readers.window, readers.agents
    return {
        "D": dim, "W": padded(dim), "T": padded(side * side), "SIDE": side, "A": padded(agents + prefix),
        "AGENTS": agents, "PREFIX": prefix, "DOT": options.dot, **NEAR,
    }  # fmt: skip


def _without(constants: dict[str, Constant], *names: str) -> dict[str, Constant]:
    return {key: value for key, value in constants.items() if key not in names}
