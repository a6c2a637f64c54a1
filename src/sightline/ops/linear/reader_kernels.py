"""Softmax for a few queries within InLine attention: parts of its kernels.

Readers (images, AGENTS + FIRST, C) attend to all keys while these are summed. What the first AGENTS of them gather,
every token then asks them for by softmax, in place of the mean of the values. The others are the queries of the first
FIRST tokens, and what they gather is the output of these tokens.

A program owns a group of heads; its readers are GROUP * A rows, A of them for each head, zero outside its channels.
"""

import triton
import triton.language as tl

from sightline.ops.common.tiles import LOG2E, dot, operand


@triton.jit
def readers_of(
    readers, image, C, channel, live, D: tl.constexpr, GROUP: tl.constexpr, W: tl.constexpr, A: tl.constexpr,
    USED: tl.constexpr, ROWS: tl.constexpr, DOT: tl.constexpr,
):
    """The first USED of an image's ROWS readers (GROUP * A, W), A rows for each head of the group."""
    row, column = tl.arange(0, GROUP * A), tl.arange(0, W)[None, :]
    offset = tl.cast(image, tl.int64) * ROWS * C + channel + ((row % A)[:, None] * C + column)
    ok = (row % A < USED)[:, None] & (column // D == (row // A)[:, None]) & live
    return operand(tl.load(readers + offset, mask=ok, other=0), DOT)


@triton.jit
def read_tile(top, total, acc, readers, kt, vt, ok, scale, DOT: tl.constexpr):
    """One more tile of keys and values for the softmax of the readers: the largest score so far, as a power of two, the
    sum of the weights, and the weighted values (GROUP * A, W)."""
    score = dot(readers, tl.trans(kt), DOT) * (scale * LOG2E)  # GROUP * A, T
    score = tl.where(ok[None, :], score, float("-inf"))
    higher = tl.maximum(top, tl.max(score, 1))
    weight, shrunk = tl.exp2(score - higher[:, None]), tl.exp2(top - higher)
    acc = dot(operand(weight, DOT), vt, DOT, acc * shrunk[:, None])
    return higher, total * shrunk + tl.sum(weight, 1), acc


@triton.jit
def ask(
    acc, qt, asked, scale, T: tl.constexpr, GROUP: tl.constexpr, A: tl.constexpr, AGENTS: tl.constexpr,
    DOT: tl.constexpr,
):
    """acc + softmax(scale q a^T) u of the agents a and of their values u, (GROUP * A, W) each as in `readers_of`."""
    agents, values = asked
    score = dot(qt, tl.trans(agents), DOT) * (scale * LOG2E)  # T, GROUP * A
    score = tl.where((tl.arange(0, GROUP * A) % A < AGENTS)[None, :], score, float("-inf"))
    if GROUP > 1:
        score = tl.reshape(score, (T, GROUP, A))
        weight = tl.exp2(score - tl.max(score, 2)[:, :, None])
        weight = tl.reshape(weight / tl.sum(weight, 2)[:, :, None], (T, GROUP * A))
    else:
        weight = tl.exp2(score - tl.max(score, 1)[:, None])
        weight = weight / tl.sum(weight, 1)[:, None]
    return dot(operand(weight, DOT), values, DOT, acc)


@triton.jit
def finish_readers(
    read, values, out, image, head, parts, images, tokens, H, D: tl.constexpr, A: tl.constexpr, WIDE: tl.constexpr,
    AGENTS: tl.constexpr, FIRST: tl.constexpr,
):
    """What the readers of one head have gathered in all parts, to the values of the agents and the first tokens."""
    row, column = tl.arange(0, A), tl.arange(0, WIDE)[None, :]
    ok = row < AGENTS + FIRST
    cell = ok[:, None] & (column < D)
    step = tl.cast(images, tl.int64) * H * A * (D + 2)
    at = read + ((tl.cast(image, tl.int64) * H + head) * A + row) * (D + 2)
    top = tl.full((A,), float("-inf"), tl.float32)
    for part in range(parts):
        top = tl.maximum(top, tl.load(at + part * step + D, mask=ok, other=0))
    total, gathered = tl.zeros((A,), tl.float32), tl.zeros((A, WIDE), tl.float32)
    for part in range(parts):
        share = tl.exp2(tl.load(at + part * step + D, mask=ok, other=0) - top)
        total += share * tl.load(at + part * step + D + 1, mask=ok, other=1)
        gathered += share[:, None] * tl.load(at[:, None] + part * step + column, mask=cell, other=0)
    gathered = gathered / total[:, None]
    C = H * D
    if AGENTS:
        to = values + (tl.cast(image, tl.int64) * AGENTS + row) * C + head * D
        tl.store(to[:, None] + column, gathered.to(values.dtype.element_ty), mask=cell & (row < AGENTS)[:, None])
    if FIRST:
        to = out + (tl.cast(image, tl.int64) * tokens + row - AGENTS) * C + head * D
        tl.store(to[:, None] + column, gathered.to(out.dtype.element_ty), mask=cell & (row >= AGENTS)[:, None])
