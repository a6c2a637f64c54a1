"""Forward kernels of InLine and linear attention.

Both follow one scheme. With feature map phi, a state is summed over the keys and applied to the queries:

    InLine   out_i = m + s phi(q_i) S                  S = mean(phi(k) v^T) - mean_k mean_v^T,  m = mean_v
    linear   out_i = phi(q_i) S / clamp(phi(q_i) . z)  S = mean(phi(k) v^T),                    z = mean_k

and InLine adds the 3x3 residual of v while the output is written. A program owns one image and a group of heads,
GROUP * D contiguous channels, so that rows are read in segments of 128 bytes or more; the state of several heads is
block diagonal and masked (`same_head`). Short sequences take one program for everything (`forward_short`). Long ones
are cut into chunks of tokens: partial sums (`forward_partial`), their sum (`forward_finish`), then a pass over the
tokens (`forward_write`). Sums are in float32, in an order that depends on the number of tokens alone.

The residual walks down the grid, one strip of X columns per program. A row of v is read three times, one column apart,
and each time serves three rows of the output, so that nine taps cost three reads; three accumulators hold the rows in
progress. In a grid of one row (LINE) it walks along it, with three taps. Its weights (images, 9, C) are given or, with
MADE, made on the way from the mean of an image's tokens x (`make_weights`), as a layer does.

A few readers may attend to all keys by softmax while these are summed, and agents among them be asked by every token
(`reader_kernels`). Asking takes the registers that the residual needs, so in long images a second pass adds the
residual to the output (ADD).

The sums of an image are one row of float32: sum phi(k) v^T (H, D, D), sum phi(k) (H, D), sum v (H, D), the shift of k
and of v (H, D each), the number of keys (four times). float32 tensors are shifted by their first token that counts
before they are multiplied, so that large means do not cancel; others are coarser than that cancellation.
"""

import triton
import triton.language as tl

from sightline.ops.common.kernels import add_block
from sightline.ops.common.tiles import dot, image_of, operand
from sightline.ops.linear.reader_kernels import ask, finish_readers, read_tile, readers_of
from sightline.ops.linear.tiles import (
    across,
    cells_of,
    filter_of,
    grid_of,
    limits_of,
    live_of,
    matrix_of,
    pairs_of,
    phi_of,
    rows_of,
    same_head,
    three_columns,
)
from sightline.ops.linear.weights_kernels import hidden_of, make_weights, rows_of_taps, store_weights, tap_of


@triton.jit
def sum_keys(
    k, k_token, v, v_token, x, x_token, mask, shift_k, shift_v, readers, live, first, last, scale, W: tl.constexpr,
    T: tl.constexpr, PHI: tl.constexpr, MASKED: tl.constexpr, MADE: tl.constexpr, SHIFT: tl.constexpr,
    READERS: tl.constexpr, DOT: tl.constexpr,
):
    """Over the tokens first <= t < last: sum phi(k)^T v (W, W), sum phi(k), sum v, sum x (W,), and how many count; and
    what READERS rows of readers have gathered (`read_tile`)."""
    moment = tl.zeros((W, W), tl.float32)
    sum_k = tl.zeros((W, 16), tl.float32)
    sum_v = tl.zeros((16, W), tl.float32)
    sum_x = tl.zeros((1 if not MADE else 16 if DOT == "bf16" else T, W), tl.float32)
    top = tl.full((READERS if READERS else 1,), float("-inf"), tl.float32)
    total = tl.zeros((READERS if READERS else 1,), tl.float32)
    gathered = tl.zeros((READERS if READERS else 1, W), tl.float32)
    count = 0.0
    row = tl.arange(0, T)
    ones = operand(tl.full((16, T), 1.0, tl.float32), DOT)
    tall_ones = operand(tl.full((T, 16), 1.0, tl.float32), DOT)
    for t0 in range(first, last, T):
        ok = t0 + row < last
        if MASKED:
            ok &= tl.load(mask + t0 + row, mask=ok, other=0) != 0  # T
            count += tl.sum(ok.to(tl.float32), 0)
        cell = ok[:, None] & live
        kt = tl.load(rows_of(k, k_token, t0, T, W), mask=cell, other=0)  # T W
        vt = tl.load(rows_of(v, v_token, t0, T, W), mask=cell, other=0)  # T W
        if MADE:
            xt = tl.load(rows_of(x, x_token, t0, T, W), mask=cell, other=0)  # T W
            if DOT == "bf16":
                sum_x += dot(ones, operand(xt, DOT), DOT)
            else:
                sum_x += xt.to(tl.float32)
        if READERS:
            top, total, gathered = read_tile(
                top, total, gathered, readers, operand(kt, DOT), operand(vt, DOT), ok, scale, DOT
            )
        if PHI != "identity":
            kt = tl.where(cell, phi_of(kt.to(tl.float32), PHI), 0.0)
        if SHIFT:
            kt = tl.where(cell, kt - shift_k[None, :], 0.0)
            vt = tl.where(cell, vt - shift_v[None, :], 0.0)
        kt, vt = operand(kt, DOT), operand(vt, DOT)
        moment += dot(tl.trans(kt), vt, DOT)
        sum_k += dot(tl.trans(kt), tall_ones, DOT)  # a product with ones is a cheap sum over the rows
        sum_v += dot(ones, vt, DOT)
    if not MASKED:
        count = tl.cast(tl.maximum(last - first, 0), tl.float32)
    sum_k, sum_v = tl.sum(sum_k, 1) / 16, tl.sum(sum_v, 0) / 16
    sum_x = tl.sum(sum_x, 0) / 16 if DOT == "bf16" else tl.sum(sum_x, 0)
    return moment, sum_k, sum_v, sum_x, count, top, total, gathered


@triton.jit
def _first_key(mask, tokens, T: tl.constexpr, MASKED: tl.constexpr):
    """The first token of an image that counts; 0 if none does."""
    if MASKED:
        row = tl.arange(0, T)
        first = tl.zeros((T,), tl.int32) + tokens
        for t0 in range(0, tokens, T):
            counted = tl.load(mask + t0 + row, mask=t0 + row < tokens, other=0) != 0  # T
            first = tl.minimum(first, tl.where(counted, t0 + row, tokens))
        first = tl.min(first, 0)
        return tl.where(first < tokens, first, 0)
    else:
        return 0


@triton.jit
def _shift(
    x, token, mask, live, tokens, W: tl.constexpr, T: tl.constexpr, PHI: tl.constexpr, MASKED: tl.constexpr,
    SHIFT: tl.constexpr,
):
    """phi of the first token that counts (W,), by which sums are shifted."""
    if SHIFT:
        first = tl.cast(_first_key(mask, tokens, T, MASKED), tl.int64)
        cell = live & (tl.zeros((1, W), tl.int32) < tokens)
        row = tl.load(x + first * token + tl.arange(0, W)[None, :], mask=cell, other=0)  # 1 W
        return tl.sum(tl.where(cell, phi_of(row, PHI), 0.0), 0)
    else:
        return tl.zeros((W,), tl.float32)


@triton.jit
def finish(
    moment, sum_k, sum_v, shift_k, shift_v, count, D: tl.constexpr, W: tl.constexpr, LINEAR: tl.constexpr,
    SHIFT: tl.constexpr,
):
    """The state S, mean phi(k) and mean v of whole sums."""
    share = 1.0 / tl.maximum(count, 1.0)
    mean_k, mean_v = sum_k * share, sum_v * share
    state = moment * share
    if not LINEAR:
        state -= mean_k[:, None] * mean_v[None, :]
    state = tl.where(same_head(D, W), state, 0.0)
    if SHIFT:
        mean_k += tl.where(count > 0, shift_k, 0.0)
        mean_v += tl.where(count > 0, shift_v, 0.0)
    return state, mean_k, mean_v


@triton.jit
def store_sums(
    sums, row, moment, sum_k, sum_v, shift_k, shift_v, count, group, H, D: tl.constexpr, GROUP: tl.constexpr,
    W: tl.constexpr,
):
    """Write one row of sums, dropping what lies between heads."""
    ok, pair = pairs_of(D, GROUP, W)
    channel = group * GROUP * D + tl.arange(0, W)
    base = sums + tl.cast(row, tl.int64) * (H * D * (D + 4) + 4)
    tl.store(base + matrix_of(group, D, GROUP, W), moment, mask=pair)
    base += H * D * D
    tl.store(base + channel, sum_k, mask=ok)
    tl.store(base + H * D + channel, sum_v, mask=ok)
    tl.store(base + 2 * H * D + channel, shift_k, mask=ok)
    tl.store(base + 3 * H * D + channel, shift_v, mask=ok)
    if group == 0:
        tl.store(base + 4 * H * D + tl.arange(0, 4), tl.zeros((4,), tl.float32) + count)


@triton.jit
def load_state(
    sums, row, group, H, D: tl.constexpr, GROUP: tl.constexpr, W: tl.constexpr, LINEAR: tl.constexpr,
    SHIFT: tl.constexpr,
):
    """S (W, W), mean phi(k) (W,), mean v (W,) and the number of keys from one row of sums."""
    ok, pair = pairs_of(D, GROUP, W)
    channel = group * GROUP * D + tl.arange(0, W)
    base = sums + tl.cast(row, tl.int64) * (H * D * (D + 4) + 4)
    moment = tl.load(base + matrix_of(group, D, GROUP, W), mask=pair, other=0)  # W W
    base += H * D * D
    sum_k = tl.load(base + channel, mask=ok, other=0)  # W
    sum_v = tl.load(base + H * D + channel, mask=ok, other=0)  # W
    count = tl.load(base + 4 * H * D)
    shift_k, shift_v = sum_k, sum_v
    if SHIFT:
        shift_k = tl.load(base + 2 * H * D + channel, mask=ok, other=0)  # W
        shift_v = tl.load(base + 3 * H * D + channel, mask=ok, other=0)  # W
    state, mean_k, mean_v = finish(moment, sum_k, sum_v, shift_k, shift_v, count, D, W, LINEAR, SHIFT)
    return state, mean_k, mean_v, count


@triton.jit
def _write(
    q, q_token, out, out_token, state, mean_v, mean_k, asked, live, first, last, scale, eps, GROUP: tl.constexpr,
    W: tl.constexpr, T: tl.constexpr, PHI: tl.constexpr, LINEAR: tl.constexpr, A: tl.constexpr, AGENTS: tl.constexpr,
    FIRST: tl.constexpr, DOT: tl.constexpr,
):
    """The output of the tokens first <= t < last but the first FIRST of all, without a residual."""
    row = tl.arange(0, T)
    state = operand(state, DOT)
    for t0 in range(first, last, T):
        cell = (t0 + row < last)[:, None] & live
        if FIRST:
            cell &= (t0 + row >= FIRST)[:, None]
        qt = tl.load(rows_of(q, q_token, t0, T, W), mask=cell, other=0)  # T W
        query = operand(qt, DOT)
        if PHI != "identity":
            qt = phi_of(qt.to(tl.float32), PHI)
        acc = dot(operand(qt, DOT), state, DOT)
        if LINEAR:
            total = tl.sum(tl.where(live, qt.to(tl.float32), 0.0) * mean_k[None, :], 1)
            total = tl.where(total < 0, tl.minimum(total, -eps), tl.maximum(total, eps))
            acc = acc / total[:, None]
        else:
            acc = acc * scale + mean_v[None, :]
        if AGENTS:
            acc = ask(acc, query, asked, scale, T, GROUP, A, AGENTS, DOT)
        tl.store(rows_of(out, out_token, t0, T, W), acc.to(out.dtype.element_ty), mask=cell)


@triton.jit
def _write_strip(
    q, q_token, v, v_token, out, out_token, mask, taps, live, state, mean_v, asked, x0, x1, y0, y1, height, width,
    prefix, scale, GROUP: tl.constexpr, W: tl.constexpr, X: tl.constexpr, PHI: tl.constexpr, MASKED: tl.constexpr,
    A: tl.constexpr, AGENTS: tl.constexpr, ADD: tl.constexpr, DOT: tl.constexpr, STAGES: tl.constexpr,
):
    """The output, with the residual, of the columns x0 <= x < x1 and the rows y0 <= y < y1 of the grid; with ADD the
    residual of v and q."""
    col = x0 + tl.arange(0, X)
    limits = limits_of(col, height, width)
    if not ADD:
        state = operand(state * scale, DOT)
    w0, w1, w2, w3, w4, w5, w6, w7, w8 = taps
    now = tl.zeros((X, W), tl.float32) + mean_v[None, :]
    after = tl.zeros((X, W), tl.float32) + mean_v[None, :]
    for y in tl.range(tl.maximum(y0 - 2, -1), y1, num_stages=STAGES):  # the first one or two only read v
        # All loads lead to the product, as an operand or through its accumulator, so that they are pipelined.
        le, he, ri = three_columns(v, v_token, mask, y + 1, col, limits, width, prefix, live, W, MASKED)  # X W each
        first = prefix + y * width
        cell = (col < tl.where(y < y0, 0, x1))[:, None] & live
        qt = tl.load(cells_of(q, q_token, first, col, W), mask=cell, other=0)  # X W
        query = operand(qt, DOT)
        if PHI != "identity" and not ADD:
            qt = phi_of(qt.to(tl.float32), PHI)
        left, here, right = le.to(tl.float32), he.to(tl.float32), ri.to(tl.float32)
        acc = across(now, left, here, right, w6, w7, w8)
        now = across(after, left, here, right, w3, w4, w5)
        after = across(mean_v[None, :], left, here, right, w0, w1, w2)
        if ADD:
            acc += qt.to(tl.float32)
        else:
            acc = dot(operand(qt, DOT), state, DOT, acc)
        if AGENTS:
            acc = ask(acc, query, asked, scale, X, GROUP, A, AGENTS, DOT)
        tl.store(cells_of(out, out_token, first, col, W), acc.to(out.dtype.element_ty), mask=cell)


@triton.jit
def _write_line(
    q, q_token, v, v_token, out, out_token, mask, taps, live, state, mean_v, first, last, width, prefix, scale,
    W: tl.constexpr, X: tl.constexpr, PHI: tl.constexpr, MASKED: tl.constexpr, DOT: tl.constexpr, STAGES: tl.constexpr,
):
    """`_write_strip` for a grid of one row, along it: the columns first <= x < last, with a row of the filter."""
    state = operand(state * scale, DOT)
    col = tl.arange(0, X)
    for x in tl.range(first, last, X, num_stages=STAGES):
        limits, start = limits_of(x + col, 1, width), prefix + x
        le, he, ri = three_columns(v, v_token, mask, 0, col, limits, width, start, live, W, MASKED)  # X W each
        cell = (x + col < last)[:, None] & live
        qt = tl.load(cells_of(q, q_token, start, col, W), mask=cell, other=0)  # X W
        if PHI != "identity":
            qt = phi_of(qt.to(tl.float32), PHI)
        left, here, right = le.to(tl.float32), he.to(tl.float32), ri.to(tl.float32)
        acc = across(mean_v[None, :], left, here, right, taps[3], taps[4], taps[5])
        acc = dot(operand(qt, DOT), state, DOT, acc)
        tl.store(cells_of(out, out_token, start, col, W), acc.to(out.dtype.element_ty), mask=cell)


@triton.jit(do_not_specialize=["tokens_q", "tokens_k", "height", "width", "prefix", "H"])
def forward_short(
    q, q_batch, q_token, k, k_batch, k_token, v, v_batch, v_token, x, x_batch, x_token, out, weights, w1, b1, w2, b2,
    mean, mask, cu, grids, readers, sums, H, tokens_q, tokens_k, height, width, prefix, scale, eps, D: tl.constexpr,
    GROUP: tl.constexpr, W: tl.constexpr, T: tl.constexpr, X: tl.constexpr, PHI: tl.constexpr, LINEAR: tl.constexpr,
    RESIDUAL: tl.constexpr, LINE: tl.constexpr, MADE: tl.constexpr, MASKED: tl.constexpr, VARLEN: tl.constexpr,
    SAVE: tl.constexpr, A: tl.constexpr, AGENTS: tl.constexpr, FIRST: tl.constexpr, DOT: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Everything for one image and group of heads in one program."""
    group, image = tl.program_id(0), tl.program_id(1)
    SHIFT: tl.constexpr = k.dtype.element_ty == tl.float32 and not LINEAR
    ROWS: tl.constexpr = AGENTS + FIRST
    live = live_of(D, GROUP, W)
    channel, C = group * GROUP * D, H * D
    scale, eps = tl.cast(scale, tl.float32), tl.cast(eps, tl.float32)
    q, n_q = image_of(q, q_batch, q_token, cu, image, tokens_q, channel, VARLEN)
    k, n_k = image_of(k, k_batch, k_token, cu, image, tokens_k, channel, VARLEN)
    v, _ = image_of(v, v_batch, v_token, cu, image, tokens_k, channel, VARLEN)
    out, _ = image_of(out, tokens_q * C, C, cu, image, tokens_q, channel, VARLEN)
    if MADE:
        x, _ = image_of(x, x_batch, x_token, cu, image, tokens_k, channel, VARLEN)
    if MASKED:
        mask += tl.cast(image, tl.int64) * tokens_k
    shift_k = _shift(k, k_token, mask, live, n_k, W, T, PHI, MASKED, SHIFT)
    shift_v = _shift(v, v_token, mask, live, n_k, W, T, "identity", MASKED, SHIFT)
    if ROWS:
        readers = readers_of(readers, image, C, channel, live, D, GROUP, W, A, ROWS, ROWS, DOT)
    moment, sum_k, sum_v, sum_x, count, _, total, gathered = sum_keys(
        k, k_token, v, v_token, x, x_token, mask, shift_k, shift_v, readers, live, 0, n_k, scale, W, T, PHI, MASKED,
        MADE, SHIFT, GROUP * A if ROWS else 0, DOT,
    )
    if SAVE:
        store_sums(sums, image, moment, sum_k, sum_v, shift_k, shift_v, count, group, H, D, GROUP, W)
    state, mean_k, mean_v = finish(moment, sum_k, sum_v, shift_k, shift_v, count, D, W, LINEAR, SHIFT)
    asked = None
    if ROWS:
        row, column = tl.arange(0, GROUP * A), tl.arange(0, W)[None, :]
        own = (column // D == (row // A)[:, None]) & live
        gathered = tl.where(own, gathered / total[:, None], 0.0)
        if FIRST:
            token = row % A - AGENTS
            at = out + (token[:, None] * C + column)
            tl.store(at, gathered.to(out.dtype.element_ty), mask=own & ((token >= 0) & (token < FIRST))[:, None])
        if AGENTS:
            asked = (readers, operand(gathered, DOT))
            mean_v = tl.zeros((W,), tl.float32)
    if RESIDUAL:
        if MADE:
            sum_x = sum_x / tokens_k
            made = make_weights(sum_x, w1, b1, w2, b2, channel, D, GROUP, W, DOT)
            if SAVE:
                store_weights(weights, mean, made, sum_x, image, C, channel, live, W)
            taps = rows_of_taps(made)
        else:
            taps = filter_of(weights, image, C, channel, live, W, False)
        height, width = grid_of(grids, image, height, width, VARLEN)
        _write(
            q, q_token, out, C, state, mean_v, mean_k, asked, live, 0, prefix, scale, eps, GROUP, W, 16, PHI, LINEAR,
            A, AGENTS, FIRST, DOT,
        )
        if LINE:
            cells = height * width
            _write_line(
                q, q_token, v, v_token, out, C, mask, taps, live, state, mean_v, 0, cells, cells, prefix, scale, W, X,
                PHI, MASKED, DOT, STAGES,
            )
        else:
            for x0 in range(0, width, X):
                _write_strip(
                    q, q_token, v, v_token, out, C, mask, taps, live, state, mean_v, asked, x0,
                    tl.minimum(x0 + X, width), 0, height, height, width, prefix, scale, GROUP, W, X, PHI, MASKED, A,
                    AGENTS, False, DOT, STAGES,
                )
    else:
        _write(
            q, q_token, out, C, state, mean_v, mean_k, asked, live, 0, n_q, scale, eps, GROUP, W, T, PHI, LINEAR, A,
            AGENTS, FIRST, DOT,
        )


@triton.jit(do_not_specialize=["tokens", "chunk", "H"])
def forward_partial(
    k, k_batch, k_token, v, v_batch, v_token, x, x_batch, x_token, mask, cu, readers, sums, sums_x, read, H, tokens,
    chunk, scale, D: tl.constexpr, GROUP: tl.constexpr, W: tl.constexpr, T: tl.constexpr, PHI: tl.constexpr,
    LINEAR: tl.constexpr, MADE: tl.constexpr, MASKED: tl.constexpr, VARLEN: tl.constexpr, A: tl.constexpr,
    AGENTS: tl.constexpr, FIRST: tl.constexpr, DOT: tl.constexpr,
):
    """Sums over one chunk of keys; those of x are (parts, images, C). For the readers of each head, `read` (parts,
    images, H, A, D + 2) has the weighted values, the largest score and the sum of the weights."""
    group, image, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    SHIFT: tl.constexpr = k.dtype.element_ty == tl.float32 and not LINEAR
    ROWS: tl.constexpr = AGENTS + FIRST
    live = live_of(D, GROUP, W)
    channel = group * GROUP * D
    k, n = image_of(k, k_batch, k_token, cu, image, tokens, channel, VARLEN)
    v, _ = image_of(v, v_batch, v_token, cu, image, tokens, channel, VARLEN)
    if MADE:
        x, _ = image_of(x, x_batch, x_token, cu, image, tokens, channel, VARLEN)
    if MASKED:
        mask += tl.cast(image, tl.int64) * tokens
    shift_k = _shift(k, k_token, mask, live, n, W, T, PHI, MASKED, SHIFT)
    shift_v = _shift(v, v_token, mask, live, n, W, T, "identity", MASKED, SHIFT)
    first, last = part * chunk, tl.minimum(part * chunk + chunk, n)
    if ROWS:
        readers = readers_of(readers, image, H * D, channel, live, D, GROUP, W, A, ROWS, ROWS, DOT)
    moment, sum_k, sum_v, sum_x, count, top, total, gathered = sum_keys(
        k, k_token, v, v_token, x, x_token, mask, shift_k, shift_v, readers, live, first, last,
        tl.cast(scale, tl.float32), W, T, PHI, MASKED, MADE, SHIFT, GROUP * A if ROWS else 0, DOT,
    )
    if part > 0:  # the shift is the same for all parts: the first one stores it
        shift_k, shift_v = tl.zeros((W,), tl.float32), tl.zeros((W,), tl.float32)
    row = part * tl.num_programs(1) + image
    store_sums(sums, row, moment, sum_k, sum_v, shift_k, shift_v, count, group, H, D, GROUP, W)
    if MADE:
        offset = tl.cast(row, tl.int64) * H * D + channel + tl.arange(0, W)[None, :]
        tl.store(sums_x + offset, sum_x[None, :], mask=live)
    if ROWS:
        line, column = tl.arange(0, GROUP * A), tl.arange(0, W)[None, :]
        own = (column // D == (line // A)[:, None]) & live & (line % A < ROWS)[:, None]
        at = read + ((tl.cast(row, tl.int64) * H + group * GROUP) * A + line) * (D + 2)
        tl.store(at[:, None] + column % D, gathered, mask=own)
        tl.store(at + D, top, mask=line % A < ROWS)
        tl.store(at + D + 1, total, mask=line % A < ROWS)


@triton.jit(do_not_specialize=["parts", "size", "adders", "makers", "images", "tokens", "H"])
def forward_finish(
    parts_ptr, sums, sums_x, weights, w1, b1, w2, b2, mean, read, values, out, parts, size, adders, makers, images,
    tokens, H, D: tl.constexpr, GROUP: tl.constexpr, W: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
    MADE: tl.constexpr, A: tl.constexpr, WIDE: tl.constexpr, AGENTS: tl.constexpr, FIRST: tl.constexpr,
):
    """The sum of the partial sums, by the first `adders` programs; the next `makers` make one tap of an image each, and
    the others finish the readers of one head of an image."""
    program = tl.program_id(0)
    if program < adders:
        add_block(parts_ptr, sums, program, parts, size, PARTS, BLOCK)
    elif AGENTS + FIRST > 0 and program >= adders + makers:
        piece = program - adders - makers
        finish_readers(read, values, out, piece // H, piece % H, parts, images, tokens, H, D, A, WIDE, AGENTS, FIRST)
    elif MADE:
        piece = program - adders
        image, group, tap = piece // 9 % images, piece // (9 * images), piece % 9
        live = live_of(D, GROUP, W)
        channel, C = group * GROUP * D, H * D
        part = tl.arange(0, PARTS)
        total = tl.zeros((PARTS, W), tl.float32)
        for first in range(0, parts, PARTS):
            row = ((first + part) * images + image).to(tl.int64)
            cell = (first + part < parts)[:, None] & live
            total += tl.load(sums_x + row[:, None] * C + channel + tl.arange(0, W)[None, :], mask=cell, other=0)
        average = tl.sum(total, 0) / tokens
        offset = channel + tl.arange(0, W)[None, :]
        if tap == 0:
            tl.store(mean + tl.cast(image, tl.int64) * C + offset, average[None, :], mask=live)
        hidden = hidden_of(average, w1, b1, channel, D, GROUP, W)
        taps = weights + (tl.cast(image, tl.int64) * 9 + tap) * C + offset
        tl.store(taps, tap_of(hidden, w2, b2, tap, channel, D, GROUP, W), mask=live)


@triton.jit(do_not_specialize=["tokens", "tokens_k", "chunk", "height", "width", "prefix", "H"])
def forward_write(
    q, q_batch, q_token, v, v_batch, v_token, out, weights, mask, cu, grids, readers, values, sums, H, tokens, tokens_k,
    chunk, height, width, prefix, scale, eps, D: tl.constexpr, GROUP: tl.constexpr, W: tl.constexpr, T: tl.constexpr,
    X: tl.constexpr, PHI: tl.constexpr, LINEAR: tl.constexpr, RESIDUAL: tl.constexpr, LINE: tl.constexpr,
    MASKED: tl.constexpr, VARLEN: tl.constexpr, A: tl.constexpr, AGENTS: tl.constexpr, FIRST: tl.constexpr,
    ADD: tl.constexpr, DOT: tl.constexpr, STAGES: tl.constexpr,
):
    """The output of one chunk: of tokens, or with the residual of grid rows in a strip of X columns, or of columns in a
    LINE, a grid of one row. With ADD, the residual is added to the output."""
    group, image, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    SHIFT: tl.constexpr = q.dtype.element_ty == tl.float32 and not LINEAR
    live = live_of(D, GROUP, W)
    channel, C = group * GROUP * D, H * D
    scale, eps = tl.cast(scale, tl.float32), tl.cast(eps, tl.float32)
    q, n = image_of(q, q_batch, q_token, cu, image, tokens, channel, VARLEN)
    out, _ = image_of(out, tokens * C, C, cu, image, tokens, channel, VARLEN)
    asked, state, mean_k = None, None, None
    mean_v = tl.zeros((W,), tl.float32)
    if not ADD:
        state, mean_k, mean, _ = load_state(sums, image, group, H, D, GROUP, W, LINEAR, SHIFT)
        if not AGENTS:
            mean_v = mean
    if AGENTS:
        agents = readers_of(readers, image, C, channel, live, D, GROUP, W, A, AGENTS, AGENTS + FIRST, DOT)
        asked = (agents, readers_of(values, image, C, channel, live, D, GROUP, W, A, AGENTS, AGENTS, DOT))
    if RESIDUAL:
        v, _ = image_of(v, v_batch, v_token, cu, image, tokens_k, channel, VARLEN)
        height, width = grid_of(grids, image, height, width, VARLEN)
        if MASKED:
            mask += tl.cast(image, tl.int64) * tokens_k
        if part == 0 and not ADD:
            _write(
                q, q_token, out, C, state, mean_v, mean_k, asked, live, 0, prefix, scale, eps, GROUP, W, 16, PHI,
                LINEAR, A, AGENTS, FIRST, DOT,
            )
        if LINE:
            x0, cells = part * chunk, height * width
            taps = filter_of(weights, image, C, channel, live, W, False)
            _write_line(
                q, q_token, v, v_token, out, C, mask, taps, live, state, mean_v, x0, tl.minimum(x0 + chunk, cells),
                cells, prefix, scale, W, X, PHI, MASKED, DOT, STAGES,
            )
        else:
            strips = tl.maximum(tl.cdiv(width, X), 1)
            x0, y0 = part % strips * X, part // strips * chunk
            if y0 < height:
                taps = filter_of(weights, image, C, channel, live, W, False)
                _write_strip(
                    out if ADD else q, C if ADD else q_token, v, v_token, out, C, mask, taps, live, state, mean_v,
                    asked, x0, tl.minimum(x0 + X, width), y0, tl.minimum(y0 + chunk, height), height, width, prefix,
                    scale, GROUP, W, X, PHI, MASKED, A, AGENTS, ADD, DOT, STAGES,
                )
    else:
        first, last = part * chunk, tl.minimum(part * chunk + chunk, n)
        _write(
            q, q_token, out, C, state, mean_v, mean_k, asked, live, first, last, scale, eps, GROUP, W, T, PHI, LINEAR,
            A, AGENTS, FIRST, DOT,
        )
