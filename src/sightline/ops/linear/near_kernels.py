"""The output of InLine attention with agents and windows: one softmax over what is near and what is far.

A query attends by one softmax to the keys of its own window of SIDE x SIDE tokens, to those of the prefix and to the
agents. An offset (H, D) and a scale (H, 1) make keys of agents; the part that is linear in the query has a gain (H, 1).
Values of the agents are what they have gathered (`forward_kernels`). A program owns one head of an image
and walks along a row of windows; tokens of the prefix have their output already. Small images take one program for a
whole head, which gathers too (`near_short`).
"""

import triton
import triton.language as tl

from sightline.ops.common.tiles import LOG2E, dot, operand
from sightline.ops.linear.forward_kernels import finish, load_state, sum_keys
from sightline.ops.linear.reader_kernels import readers_of
from sightline.ops.linear.tiles import live_of


@triton.jit
def _starts(q, q_batch, k, k_batch, v, v_batch, out, image, head, tokens, H, D: tl.constexpr):
    """Pointers to the first token of one head of an image."""
    image, channel = tl.cast(image, tl.int64), head * D
    at = image * (tokens * H * D) + channel
    return q + image * q_batch + channel, k + image * k_batch + channel, v + image * v_batch + channel, out + at


@triton.jit
def _far(
    k, k_token, v, v_token, readers, given, far_offset, far_scale, image, head, H, live, D: tl.constexpr,
    W: tl.constexpr, A: tl.constexpr, AGENTS: tl.constexpr, PREFIX: tl.constexpr, DOT: tl.constexpr,
):
    """Keys and values (A, W) of the agents, whose values are `given`, then of the prefix."""
    row, column, C = tl.arange(0, A)[:, None], tl.arange(0, W)[None, :], H * D
    agent, token = (row < AGENTS) & live, (row >= AGENTS) & (row < AGENTS + PREFIX) & live
    base = (tl.cast(image, tl.int64) * (AGENTS + PREFIX) + row) * C + head * D + column
    keys = tl.load(readers + base, mask=agent, other=0).to(tl.float32)
    offset = tl.load(far_offset + head * D + column, mask=live, other=0).to(tl.float32)
    keys = keys * tl.load(far_scale + head).to(tl.float32) + tl.where(agent, offset, 0.0)
    keys += tl.load(k + (row - AGENTS) * k_token + column, mask=token, other=0).to(tl.float32)
    given += tl.load(v + (row - AGENTS) * v_token + column, mask=token, other=0).to(tl.float32)
    return operand(keys, DOT), operand(given, DOT)


@triton.jit
def _write_windows(
    q, q_token, k, k_token, v, v_token, out, C, far_k, far_v, state, scale, live, down, height, width, W: tl.constexpr,
    T: tl.constexpr, SIDE: tl.constexpr, A: tl.constexpr, FAR: tl.constexpr, PREFIX: tl.constexpr, DOT: tl.constexpr,
    STAGES: tl.constexpr,
):
    """The output of row `down` of windows; the first FAR of the far keys exist."""
    cell = tl.arange(0, T)
    y, x = cell // SIDE, cell % SIDE
    rows = (cell < SIDE * SIDE) & (down * SIDE + y < height)
    inner = (y * width + x)[:, None]
    column = tl.arange(0, W)[None, :]
    exists = (tl.arange(0, A) < FAR)[None, :]
    for first in tl.range(0, width, SIDE, num_stages=STAGES):
        ok = rows & (first + x < width)
        start = tl.cast(PREFIX + down * SIDE * width + first, tl.int64)  # the first token of the window
        mask = ok[:, None] & live
        qt = operand(tl.load(q + start * q_token + (inner * q_token + column), mask=mask, other=0), DOT)  # T W
        kt = operand(tl.load(k + start * k_token + (inner * k_token + column), mask=mask, other=0), DOT)
        vt = operand(tl.load(v + start * v_token + (inner * v_token + column), mask=mask, other=0), DOT)
        near = tl.where(ok[None, :], dot(qt, tl.trans(kt), DOT) * (scale * LOG2E), float("-inf"))  # T T
        away = tl.where(exists, dot(qt, tl.trans(far_k), DOT) * (scale * LOG2E), float("-inf"))  # T A
        top = tl.maximum(tl.max(near, 1), tl.max(away, 1))[:, None]
        near, away = tl.exp2(near - top), tl.exp2(away - top)
        total = tl.sum(near, 1) + tl.sum(away, 1)
        acc = dot(operand(near, DOT), vt, DOT)
        acc = dot(operand(away, DOT), far_v, DOT, acc) / total[:, None]
        acc = dot(qt, state, DOT, acc)
        tl.store(out + start * C + (inner * C + column), acc.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _linear_part(state, far_gain, head, scale, DOT: tl.constexpr):
    """The state as an operand, with scale and gain."""
    return operand(state * (scale * tl.load(far_gain + head).to(tl.float32)), DOT)


@triton.jit(do_not_specialize=["tokens", "height", "width", "H"])
def near_write(
    q, q_batch, q_token, k, k_batch, k_token, v, v_batch, v_token, out, readers, values, far_offset, far_scale,
    far_gain, sums, H, tokens, height, width, scale, D: tl.constexpr, W: tl.constexpr, T: tl.constexpr,
    SIDE: tl.constexpr, A: tl.constexpr, AGENTS: tl.constexpr, PREFIX: tl.constexpr, DOT: tl.constexpr,
    STAGES: tl.constexpr,
):
    """The output of a row of windows."""
    head, image, down = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    live = live_of(D, 1, W)
    scale = tl.cast(scale, tl.float32)
    q, k, v, out = _starts(q, q_batch, k, k_batch, v, v_batch, out, image, head, tokens, H, D)
    row, column = tl.arange(0, A)[:, None], tl.arange(0, W)[None, :]
    at = (tl.cast(image, tl.int64) * AGENTS + row) * (H * D) + head * D + column
    given = tl.load(values + at, mask=(row < AGENTS) & live, other=0).to(tl.float32)  # A W
    far_k, far_v = _far(
        k, k_token, v, v_token, readers, given, far_offset, far_scale, image, head, H, live, D, W, A, AGENTS, PREFIX,
        DOT,
    )
    state, _, _, _ = load_state(sums, image, head, H, D, 1, W, False, False)
    _write_windows(
        q, q_token, k, k_token, v, v_token, out, H * D, far_k, far_v, _linear_part(state, far_gain, head, scale, DOT),
        scale, live, down, height, width, W, T, SIDE, A, AGENTS + PREFIX, PREFIX, DOT, STAGES,
    )


@triton.jit(do_not_specialize=["tokens", "height", "width", "H"])
def near_short(
    q, q_batch, q_token, k, k_batch, k_token, v, v_batch, v_token, out, readers, far_offset, far_scale, far_gain, H,
    tokens, height, width, scale, D: tl.constexpr, W: tl.constexpr, T: tl.constexpr, SIDE: tl.constexpr,
    A: tl.constexpr, AGENTS: tl.constexpr, PREFIX: tl.constexpr, DOT: tl.constexpr, STAGES: tl.constexpr,
):
    """Everything for one image and head in one program."""
    head, image = tl.program_id(0), tl.program_id(1)
    live = live_of(D, 1, W)
    scale = tl.cast(scale, tl.float32)
    q, k, v, out = _starts(q, q_batch, k, k_batch, v, v_batch, out, image, head, tokens, H, D)
    asking = readers_of(readers, image, H * D, head * D, live, D, 1, W, A, AGENTS + PREFIX, AGENTS + PREFIX, DOT)
    nothing = tl.zeros((W,), tl.float32)  # half precision, which is not shifted
    moment, sum_k, sum_v, _, count, _, total, gathered = sum_keys(
        k, k_token, v, v_token, None, 0, None, nothing, nothing, asking, live, 0, tokens, scale, W, T, "identity",
        False, False, False, A, DOT,
    )
    state, _, _ = finish(moment, sum_k, sum_v, nothing, nothing, count, D, W, False, False)
    row, column = tl.arange(0, A)[:, None], tl.arange(0, W)[None, :]
    gathered = tl.where((row < AGENTS + PREFIX) & live, gathered / total[:, None], 0.0)
    token = row - AGENTS
    tl.store(out + (token * (H * D) + column), gathered.to(out.dtype.element_ty),
             mask=(token >= 0) & (token < PREFIX) & live)
    given = tl.where(row < AGENTS, gathered, 0.0)
    far_k, far_v = _far(
        k, k_token, v, v_token, readers, given, far_offset, far_scale, image, head, H, live, D, W, A, AGENTS, PREFIX,
        DOT,
    )
    state = _linear_part(state, far_gain, head, scale, DOT)
    for down in range(0, tl.cdiv(height, SIDE)):
        _write_windows(
            q, q_token, k, k_token, v, v_token, out, H * D, far_k, far_v, state, scale, live, down, height, width, W, T,
            SIDE, A, AGENTS + PREFIX, PREFIX, DOT, STAGES,
        )
