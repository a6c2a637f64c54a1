"""InLine attention of a layer with its projections, for inference: three kernels from tokens to projected tokens.

With the norm before the layer, the tokens are x plus an update; their norm goes through the layer, whose output is
added to them.

With S, m and the residual of `linear.forward_kernels`, and the packed projection W = (Wq, Wk, Wv):

    layer_sums     v = x Wv^T + bv, and sums over chunks of tokens; k stays in registers
    layer_matrix   M = s Wq^T S and c = m + s bq S of an image, which make s q S + m = x M + c; weights of the residual
    layer_write    out = (x M + c + residual) Wp^T + bp; the mixed values stay in registers if FOLD, else they are out

so neither q nor k is ever written. Feature maps other than the identity are applied to q, so they have M = s S, and
`layer_write` makes q. Rows of partial sums are those of `store_sums`, in chunks that follow from the number of tokens.
"""

import triton
import triton.language as tl

from sightline.ops.common.tiles import dot, operand
from sightline.ops.linear.forward_kernels import finish, store_sums
from sightline.ops.linear.tiles import live_of, matrix_of, pairs_of, phi_of
from sightline.ops.linear.weights_kernels import hidden_of, tap_of


@triton.jit
def _inputs(x, x_token, token, ok, c0, C, K: tl.constexpr):
    """K channels of the tokens `token` (T,) where `ok`, from c0 on: (T, K)."""
    c = c0 + tl.arange(0, K)
    return tl.load(x + token[:, None] * x_token + c[None, :], mask=ok[:, None] & (c < C)[None, :], other=0)


@triton.jit
def _columns(w, stride, first, live, c0, C, K: tl.constexpr, W: tl.constexpr):
    """Rows first, first + 1, ... of a weight matrix as columns (K, W), at the input channels from c0 on."""
    c, row = c0 + tl.arange(0, K), first + tl.arange(0, W)
    return tl.load(w + row[None, :] * stride + c[:, None], mask=(c < C)[:, None] & live, other=0)


@triton.jit
def _sums_of_inputs(sums, rows, C, D: tl.constexpr):
    """Where sums over the inputs of the layer, C for each chunk, follow those of `store_sums`."""
    return sums + tl.cast(rows, tl.int64) * (C * (D + 4) + 4)


@triton.jit
def _added(x, update, at, ok):
    """x plus the update if there is one, rounded to the dtype of x, returned as float32."""
    total = tl.load(x + at, mask=ok, other=0)
    if update is not None:
        total = (total.to(tl.float32) + tl.load(update + at, mask=ok, other=0).to(tl.float32)).to(total.dtype)
    return total.to(tl.float32)


@triton.jit
def _normed(x, update, weight, shift, eps, y, token, ok, C, P: tl.constexpr):
    """Write to y the layer norm, over C <= P channels, of the tokens `token` where `ok`."""
    c = tl.arange(0, P)[None, :]
    cell = ok[:, None] & (c < C)
    at = token[:, None] * C + c
    total = _added(x, update, at, cell)
    centred = tl.where(cell, total - tl.sum(total, 1)[:, None] / C, 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, 1)[:, None] / C + eps)
    normed = centred * scale * tl.load(weight + c, mask=c < C, other=0).to(tl.float32)
    normed += tl.load(shift + c, mask=c < C, other=0).to(tl.float32)
    tl.store(y + at, normed.to(y.dtype.element_ty), mask=cell)


@triton.jit(do_not_specialize=["H", "tokens", "chunk"])
def layer_sums(
    x, x_batch, x_token, update, norm, shift, eps, y, w, b, v, sums, H, tokens, chunk, D: tl.constexpr,
    GROUP: tl.constexpr, W: tl.constexpr, T: tl.constexpr, K: tl.constexpr, P: tl.constexpr, R: tl.constexpr,
    PHI: tl.constexpr, RESIDUAL: tl.constexpr, DOT: tl.constexpr,
):
    """The values of one chunk of tokens, for a group of heads, and the sums over it.

    With the weight `norm` and the `shift` of a norm, R tokens are normed at a time, over C <= P channels, and written
    to y. The programs of all groups write the same bits there.
    """
    group, image, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    live = live_of(D, GROUP, W)
    channel, C = group * GROUP * D, H * D
    first, last = part * chunk, tl.minimum(part * chunk + chunk, tokens)
    x += tl.cast(image, tl.int64) * x_batch
    if norm is not None:
        y += tl.cast(image, tl.int64) * tokens * C
        if update is not None:
            update += tl.cast(image, tl.int64) * tokens * C
        for t0 in range(first, last, R):
            token = t0 + tl.arange(0, R)
            _normed(x, update, norm, shift, eps, y, token, token < last, C, P)
        tl.debug_barrier()  # y is read below by other threads than those that wrote it
        x, x_token = y, C
    v += tl.cast(image, tl.int64) * tokens * C
    col = tl.arange(0, W)
    moment = tl.zeros((W, W), tl.float32)
    sum_k, sum_v = tl.zeros((16, W), tl.float32), tl.zeros((16, W), tl.float32)
    sum_x = tl.zeros((W,), tl.float32)
    ones = operand(tl.full((16, T), 1.0, tl.float32), DOT)
    bias_k, bias_v = tl.zeros((1, W), tl.float32), tl.zeros((1, W), tl.float32)
    if b is not None:
        bias_k = tl.load(b + C + channel + col[None, :], mask=live, other=0).to(tl.float32)
        bias_v = tl.load(b + 2 * C + channel + col[None, :], mask=live, other=0).to(tl.float32)
    for t0 in range(first, last, T):
        token = t0 + tl.arange(0, T)
        ok = token < last
        cell = ok[:, None] & live
        key, value = tl.zeros((T, W), tl.float32), tl.zeros((T, W), tl.float32)
        for c0 in range(0, C, K):
            xt = operand(_inputs(x, x_token, token, ok, c0, C, K), DOT)
            key = dot(xt, operand(_columns(w, C, C + channel, live, c0, C, K, W), DOT), DOT, key)
            value = dot(xt, operand(_columns(w, C, 2 * C + channel, live, c0, C, K, W), DOT), DOT, value)
        if PHI != "identity":  # else the bias cancels
            key = phi_of(key + bias_k, PHI)
        key = operand(tl.where(cell, key, 0.0), DOT)
        rounded = tl.where(cell, value + bias_v, 0.0).to(v.dtype.element_ty)
        tl.store(v + token[:, None] * C + channel + col[None, :], rounded, mask=cell)
        value = operand(rounded, DOT)
        moment = dot(tl.trans(key), value, DOT, moment)
        sum_k = dot(ones, key, DOT, sum_k)  # a product with ones is a cheap sum over the rows
        sum_v = dot(ones, value, DOT, sum_v)
        if RESIDUAL:
            own = tl.load(x + token[:, None] * x_token + channel + col[None, :], mask=cell, other=0)  # T W
            sum_x += tl.sum(own.to(tl.float32), 0)
    row = part * tl.num_programs(1) + image
    nothing = tl.zeros((W,), tl.float32)
    count = tl.cast(last - first, tl.float32)
    sum_k, sum_v = tl.sum(sum_k, 0) / 16, tl.sum(sum_v, 0) / 16
    store_sums(sums, row, moment, sum_k, sum_v, nothing, nothing, count, group, H, D, GROUP, W)
    if RESIDUAL:
        sums_x = _sums_of_inputs(sums, tl.num_programs(2) * tl.num_programs(1), C, D)
        offset = tl.cast(row, tl.int64) * C + channel + col[None, :]
        tl.store(sums_x + offset, sum_x[None, :], mask=live)


@triton.jit(do_not_specialize=["H", "tokens", "parts"])
def layer_matrix(
    sums, w, b, w1, b1, w2, b2, matrix, weights, H, tokens, parts, scale, D: tl.constexpr,
    W: tl.constexpr, PARTS: tl.constexpr, K: tl.constexpr, PHI: tl.constexpr, RESIDUAL: tl.constexpr, DOT: tl.constexpr,
):
    """One head of an image: its columns of M, (C, C) or (D, C), and of a table (10, C): nine rows of weights, then c.

    The grid has a third axis of ten: the taps are made by one program each, M and c by the last.
    """
    head, image, piece = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    images = tl.num_programs(1)
    live = live_of(D, 1, W)
    channel, C = head * D, H * D
    scale = tl.cast(scale, tl.float32)
    dim = tl.arange(0, W)
    ok, pair = pairs_of(D, 1, W)
    none = tl.zeros((W,), tl.int32)
    weights += (tl.cast(image, tl.int64) * 10 + piece) * C + channel
    if piece < 9:
        if RESIDUAL:
            sums_x = _sums_of_inputs(sums, parts * images, C, D)
            total = tl.zeros((W,), tl.float32)
            for first in range(0, parts, PARTS):
                part = first + tl.arange(0, PARTS)
                at = sums_x + (part * images + image).to(tl.int64)[:, None] * C + channel + dim[None, :]
                total += tl.sum(tl.load(at, mask=(part < parts)[:, None] & live, other=0), 0)
            hidden = hidden_of(total / tokens, w1, b1, channel, D, 1, W)
            tl.store(weights + dim[None, :], tap_of(hidden, w2, b2, piece, channel, D, 1, W), mask=live)
    else:
        moment = tl.zeros((W, W), tl.float32)
        sum_k, sum_v = tl.zeros((W,), tl.float32), tl.zeros((W,), tl.float32)
        for first in range(0, parts, PARTS):
            for each in tl.static_range(PARTS):
                part = first + each
                base = sums + tl.cast(part * images + image, tl.int64) * (C * (D + 4) + 4)
                there = none + part < parts
                moment += tl.load(base + matrix_of(head, D, 1, W), mask=pair & there[:, None], other=0)
                sum_k += tl.load(base + C * D + channel + dim, mask=ok & there, other=0)
                sum_v += tl.load(base + C * D + C + channel + dim, mask=ok & there, other=0)
        count = tl.cast(tokens, tl.float32)
        state, _, mean_v = finish(moment, sum_k, sum_v, sum_k, sum_v, count, D, W, False, False)
        state *= scale
        if PHI == "identity":
            matrix += tl.cast(image, tl.int64) * C * C + channel
            if b is not None:
                bias = tl.load(b + channel + dim, mask=ok, other=0).to(tl.float32)
                mean_v += tl.sum(bias[:, None] * state, 0)
            state = operand(state, DOT)
            for c0 in range(0, C, K):
                c = c0 + tl.arange(0, K)
                wq = tl.load(w + (channel + dim)[None, :] * C + c[:, None], mask=(c < C)[:, None] & live, other=0)
                made = dot(operand(wq, DOT), state, DOT)  # K W
                at = matrix + c[:, None] * C + dim[None, :]
                tl.store(at, made.to(matrix.dtype.element_ty), mask=(c < C)[:, None] & live)
        else:
            matrix += tl.cast(image, tl.int64) * D * C + channel
            tl.store(matrix + dim[:, None] * C + dim[None, :], state.to(matrix.dtype.element_ty), mask=pair)
        tl.store(weights + dim, mean_v, mask=ok)


@triton.jit
def _mixed(
    x, x_token, w, b, v, matrix, weights, token, ok, y, column, height, width, group, H, D: tl.constexpr,
    GROUP: tl.constexpr, W: tl.constexpr, T: tl.constexpr, K: tl.constexpr, PHI: tl.constexpr, RESIDUAL: tl.constexpr,
    APART: tl.constexpr, DOT: tl.constexpr,
):
    """The mixed values (T, W) of a group of heads; pointers are those of the image.

    With APART the residual is summed up in the layout of its loads, not in that of products.
    """
    live = live_of(D, GROUP, W)
    channel, C = group * GROUP * D, H * D
    col = tl.arange(0, W)
    offset = tl.load(weights + 9 * C + channel + col[None, :], mask=live, other=0)  # 1 W
    acc = tl.zeros((T, W), tl.float32)
    for c0 in range(0, C, K):
        xt = operand(_inputs(x, x_token, token, ok, c0, C, K), DOT)
        if PHI == "identity":
            c = c0 + tl.arange(0, K)
            cells = matrix + c[:, None] * C + channel + col[None, :]
            side = tl.load(cells, mask=(c < C)[:, None] & live, other=0)  # K W
        else:
            side = _columns(w, C, channel, live, c0, C, K, W)
        acc = dot(xt, operand(side, DOT), DOT, acc)
    if PHI != "identity":
        if b is not None:
            acc += tl.load(b + channel + col[None, :], mask=live, other=0).to(tl.float32)
        query = tl.where(live, phi_of(acc, PHI), 0.0)
        _, pair = pairs_of(D, GROUP, W)
        state = tl.load(matrix + (col % D)[:, None] * C + channel + col[None, :], mask=pair, other=0)  # W W
        acc = dot(operand(query, DOT), operand(state, DOT), DOT)
    acc += offset
    if RESIDUAL:
        term = tl.zeros((T, W), tl.float32) if APART else acc
        for dy in range(-1, 2):
            for dx in tl.static_range(-1, 2):
                inside = (y + dy >= 0) & (y + dy < height) & (column + dx >= 0) & (column + dx < width)
                there = v + (token + dy * width + dx)[:, None] * C + channel + col[None, :]
                value = tl.load(there, mask=(ok & inside)[:, None] & live, other=0).to(tl.float32)  # T W
                tap = weights + (3 * dy + dx + 4) * C + channel + col[None, :]
                term += value * tl.load(tap, mask=live, other=0)
        acc = acc + term if APART else term
    return acc


@triton.jit(do_not_specialize=["H", "tokens", "height", "width", "prefix"])
def layer_write(
    x, x_batch, x_token, w, b, v, matrix, weights, p, bp, before, update, out, H, tokens, height, width, prefix,
    D: tl.constexpr, GROUP: tl.constexpr, W: tl.constexpr, T: tl.constexpr, X: tl.constexpr, K: tl.constexpr,
    P: tl.constexpr, PHI: tl.constexpr, RESIDUAL: tl.constexpr, FOLD: tl.constexpr, DOT: tl.constexpr,
):
    """T tokens of the output: X columns and T / X rows of the grid, or those of the prefix in the last program.

    With FOLD, all C <= P channels, projected, plus `before` and `update` if given; else the mixed values of one group.
    """
    tile, image = tl.program_id(0), tl.program_id(1)
    C = H * D
    x += tl.cast(image, tl.int64) * x_batch
    v += tl.cast(image, tl.int64) * tokens * C
    out += tl.cast(image, tl.int64) * tokens * C
    matrix += tl.cast(image, tl.int64) * C * (C if PHI == "identity" else D)
    weights += tl.cast(image, tl.int64) * 10 * C
    place = tl.arange(0, T)
    strips = tl.maximum(tl.cdiv(width, X), 1)
    on_grid = tile < strips * tl.cdiv(height, T // X)
    y = tile // strips * (T // X) + place // X
    column = tile % strips * X + place % X
    token = tl.where(on_grid, prefix + y * width + column, place)
    ok = tl.where(on_grid, (y < height) & (column < width), place < prefix)
    y = tl.where(on_grid, y, -2)  # the prefix has no neighbors
    if FOLD:
        n, col = tl.arange(0, P), tl.arange(0, W)
        total = tl.zeros((T, P), tl.float32)
        if bp is not None:
            total += tl.load(bp + n, mask=n < C, other=0).to(tl.float32)[None, :]
        for group in range(0, H // GROUP):
            mixed = _mixed(x, x_token, w, b, v, matrix, weights, token, ok, y, column, height, width, group, H, D,
                           GROUP, W, T, K, PHI, RESIDUAL, True, DOT)
            channel = group * GROUP * D + col
            live = (col < GROUP * D)[:, None] & (n < C)[None, :]
            side = tl.load(p + n[None, :] * C + channel[:, None], mask=live, other=0)  # W P
            total = dot(operand(mixed, DOT), operand(side, DOT), DOT, total)
        cell = ok[:, None] & (n < C)[None, :]
        at = token[:, None] * C + n[None, :]
        if before is not None:
            image = tl.cast(image, tl.int64) * tokens * C
            total += _added(before + image, None if update is None else update + image, at, cell)
        tl.store(out + at, total.to(out.dtype.element_ty), mask=cell)
    else:
        group = tl.program_id(2)
        mixed = _mixed(x, x_token, w, b, v, matrix, weights, token, ok, y, column, height, width, group, H, D,
                       GROUP, W, T, K, PHI, RESIDUAL, False, DOT)
        col = tl.arange(0, W)
        cell = ok[:, None] & live_of(D, GROUP, W)
        at = out + token[:, None] * C + group * GROUP * D + col[None, :]
        tl.store(at, mixed.to(out.dtype.element_ty), mask=cell)
