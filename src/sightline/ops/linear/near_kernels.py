"""The output of InLine attention with agents and windows: one softmax over what is near and what is far.

A query attends by one softmax to the keys of its own window of SIDE x SIDE tokens, to those of the prefix and to the
agents. `far` (H, D + 2) has what makes keys of agents, an offset and a scale, and the gain of the part that is linear
in the query. Values of the agents are what they have gathered (`forward_kernels`). A program owns one head of an image
and walks along a row of windows; tokens of the prefix have their output already.
"""

import triton
import triton.language as tl

from sightline.ops.common.tiles import LOG2E, dot, image_of, operand
from sightline.ops.linear.forward_kernels import load_state
from sightline.ops.linear.tiles import live_of


@triton.jit
def _far(
    k, k_token, v, v_token, readers, values, far, image, head, H, live, D: tl.constexpr, W: tl.constexpr,
    A: tl.constexpr, AGENTS: tl.constexpr, PREFIX: tl.constexpr, DOT: tl.constexpr,
):
    """Keys and values (A, W) of the agents, then of the prefix."""
    row, column, C = tl.arange(0, A)[:, None], tl.arange(0, W)[None, :], H * D
    agent, token = (row < AGENTS) & live, (row >= AGENTS) & (row < AGENTS + PREFIX) & live
    base, image = head * D + column, tl.cast(image, tl.int64)
    keys = tl.load(readers + (image * (AGENTS + PREFIX) + row) * C + base, mask=agent, other=0).to(tl.float32)
    offset = tl.load(far + head * (D + 2) + column, mask=live, other=0).to(tl.float32)
    keys = keys * tl.load(far + head * (D + 2) + D).to(tl.float32) + tl.where(agent, offset, 0.0)
    given = tl.load(values + (image * AGENTS + row) * C + base, mask=agent, other=0).to(tl.float32)
    keys += tl.load(k + (row - AGENTS) * k_token + column, mask=token, other=0).to(tl.float32)
    given += tl.load(v + (row - AGENTS) * v_token + column, mask=token, other=0).to(tl.float32)
    return operand(keys, DOT), operand(given, DOT)


@triton.jit(do_not_specialize=["tokens", "height", "width", "H"])
def near_write(
    q, q_batch, q_token, k, k_batch, k_token, v, v_batch, v_token, out, readers, values, far, sums, H, tokens, height,
    width, scale, D: tl.constexpr, W: tl.constexpr, T: tl.constexpr, SIDE: tl.constexpr,
    A: tl.constexpr, AGENTS: tl.constexpr, PREFIX: tl.constexpr, DOT: tl.constexpr, STAGES: tl.constexpr,
):
    """The output of a row of windows."""
    head, image, down = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    live = live_of(D, 1, W)
    scale = tl.cast(scale, tl.float32)
    q, _ = image_of(q, q_batch, q_token, None, image, tokens, head * D, False)
    k, _ = image_of(k, k_batch, k_token, None, image, tokens, head * D, False)
    v, _ = image_of(v, v_batch, v_token, None, image, tokens, head * D, False)
    out, _ = image_of(out, tokens * H * D, H * D, None, image, tokens, head * D, False)
    far_k, far_v = _far(
        k, k_token, v, v_token, readers, values, far, image, head, H, live, D, W, A, AGENTS, PREFIX, DOT
    )
    state, _, _, _ = load_state(sums, image, head, H, D, 1, W, False, False)
    state = operand(state * (scale * tl.load(far + head * (D + 2) + D + 1).to(tl.float32)), DOT)
    cell = tl.arange(0, T)
    y, x = cell // SIDE, cell % SIDE
    rows = (cell < SIDE * SIDE) & (down * SIDE + y < height)
    inner = (y * width + x)[:, None]
    column = tl.arange(0, W)[None, :]
    exists = (tl.arange(0, A) < AGENTS + PREFIX)[None, :]
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
        tl.store(out + start * (H * D) + (inner * (H * D) + column), acc.to(out.dtype.element_ty), mask=mask)
