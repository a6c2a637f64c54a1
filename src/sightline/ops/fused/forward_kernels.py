"""Forward kernels of InLine and linear attention.

Both are one scheme. With feature map phi, a state is summed over the keys and applied to the queries:

    InLine   out_i = m + s phi(q_i) S                  S = mean(phi(k) v^T) - mean_k mean_v^T,  m = mean_v
    linear   out_i = phi(q_i) S / clamp(phi(q_i) . z)  S = mean(phi(k) v^T),                    z = mean_k

and InLine adds the 3x3 residual of v while the output is written. A program owns one image and a group of heads,
GROUP * D channels side by side, so that rows are read in segments of 128 bytes or more; the state of several heads is
block diagonal and masked (`same_head`). Short sequences take one program for everything (`forward_short`). Long ones
are cut into chunks of tokens: partial sums (`forward_partial`), their sum (`add_parts`), then a pass over the tokens
(`forward_write`). Sums are in float32, in an order that depends on the number of tokens alone.

The residual walks down the grid, a strip of T columns a program. A row of v is read three times, one column apart, and
each time serves three rows of the output, so that nine taps cost three reads; three accumulators hold the rows that
are under way.

The sums of an image are one row of float32: sum phi(k) v^T (H, D, D), sum phi(k) (H, D), sum v (H, D), the shift of k
and of v (H, D each), the number of keys (four times). float32 tensors are shifted by their first token that counts
before they are multiplied, so that large means do not cancel; others are coarser than that cancellation.
"""

import triton
import triton.language as tl

from sightline.ops.fused.tiles import (
    across,
    channels_of,
    dot,
    filter_of,
    grid_of,
    image_of,
    limit_of,
    offsets_of,
    operand,
    phi_of,
    rows_of,
    same_head,
    three_columns,
)


@triton.jit
def _sum_keys(
    k, v, mask, shift_k, shift_v, k_sn, v_sn, k_off, v_off, live, first, last, W: tl.constexpr, T: tl.constexpr,
    PHI: tl.constexpr, MASKED: tl.constexpr, SHIFT: tl.constexpr, DOT: tl.constexpr,
):
    """Over the tokens first <= t < last: sum phi(k)^T v (W, W), sum phi(k) (W,), sum v (W,), and how many count."""
    moment = tl.zeros((W, W), tl.float32)
    sum_k = tl.zeros((16, W), tl.float32)
    sum_v = tl.zeros((16, W), tl.float32)
    count = 0.0
    row = tl.arange(0, T)
    ones = operand(tl.full((16, T), 1.0, tl.float32), DOT)
    for t0 in range(first, last, T):
        ok = t0 + row < last
        if MASKED:
            ok &= tl.load(mask + t0 + row, mask=ok, other=0) != 0
            count += tl.sum(ok.to(tl.float32), 0)
        cell = ok[:, None] & live
        kt = tl.load(rows_of(k, t0, k_sn, k_off, T), mask=cell, other=0)
        vt = tl.load(rows_of(v, t0, v_sn, v_off, T), mask=cell, other=0)
        if PHI != "identity":
            kt = tl.where(cell, phi_of(kt.to(tl.float32), PHI), 0.0)
        if SHIFT:
            kt = tl.where(cell, kt - shift_k[None, :], 0.0)
            vt = tl.where(cell, vt - shift_v[None, :], 0.0)
        kt, vt = operand(kt, DOT), operand(vt, DOT)
        moment += dot(tl.trans(kt), vt, DOT)
        sum_k += dot(ones, kt, DOT)  # a product with ones is a cheap sum over the rows
        sum_v += dot(ones, vt, DOT)
    if not MASKED:
        count = tl.cast(tl.maximum(last - first, 0), tl.float32)
    return moment, tl.sum(sum_k, 0) / 16, tl.sum(sum_v, 0) / 16, count


@triton.jit
def _first_key(mask, tokens, T: tl.constexpr, MASKED: tl.constexpr):
    """The first token of an image that counts; 0 where none does."""
    if MASKED:
        row = tl.arange(0, T)
        first = tl.zeros((T,), tl.int32) + tokens
        for t0 in range(0, tokens, T):
            seen = tl.load(mask + t0 + row, mask=t0 + row < tokens, other=0) != 0
            first = tl.minimum(first, tl.where(seen, t0 + row, tokens))
        first = tl.min(first, 0)
        return tl.where(first < tokens, first, 0)
    else:
        return 0


@triton.jit
def _shift(
    x, mask, x_sn, x_off, live, tokens, W: tl.constexpr, T: tl.constexpr, PHI: tl.constexpr, MASKED: tl.constexpr,
    SHIFT: tl.constexpr,
):
    """phi of the first token that counts (W,), which sums are shifted by."""
    if SHIFT:
        first = tl.cast(_first_key(mask, tokens, T, MASKED), tl.int64)
        cell = live & (tl.zeros((1, W), tl.int32) < tokens)
        return tl.sum(tl.where(cell, phi_of(tl.load(x + first * x_sn + x_off, mask=cell, other=0), PHI), 0.0), 0)
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
    sums, row, moment, sum_k, sum_v, shift_k, shift_v, count, group, dim, channel, H, D: tl.constexpr,
    GROUP: tl.constexpr, W: tl.constexpr,
):
    """Write one row of sums, dropping what lies between heads."""
    ok = tl.arange(0, W) < GROUP * D
    base = sums + tl.cast(row, tl.int64) * (H * D * (D + 4) + 4)
    pair = ok[:, None] & ok[None, :] & same_head(D, W)
    tl.store(base + channel[:, None] * D + dim[None, :], moment, mask=pair)
    base += H * D * D
    tl.store(base + channel, sum_k, mask=ok)
    tl.store(base + H * D + channel, sum_v, mask=ok)
    tl.store(base + 2 * H * D + channel, shift_k, mask=ok)
    tl.store(base + 3 * H * D + channel, shift_v, mask=ok)
    if group == 0:
        tl.store(base + 4 * H * D + tl.arange(0, 4), tl.zeros((4,), tl.float32) + count)


@triton.jit
def load_state(
    sums, row, dim, channel, H, D: tl.constexpr, GROUP: tl.constexpr, W: tl.constexpr, LINEAR: tl.constexpr,
    SHIFT: tl.constexpr,
):
    """S (W, W), mean phi(k) (W,), mean v (W,) and the number of keys from one row of sums."""
    ok = tl.arange(0, W) < GROUP * D
    base = sums + tl.cast(row, tl.int64) * (H * D * (D + 4) + 4)
    pair = ok[:, None] & ok[None, :] & same_head(D, W)
    moment = tl.load(base + channel[:, None] * D + dim[None, :], mask=pair, other=0)
    base += H * D * D
    sum_k = tl.load(base + channel, mask=ok, other=0)
    sum_v = tl.load(base + H * D + channel, mask=ok, other=0)
    count = tl.load(base + 4 * H * D)
    shift_k, shift_v = sum_k, sum_v
    if SHIFT:
        shift_k = tl.load(base + 2 * H * D + channel, mask=ok, other=0)
        shift_v = tl.load(base + 3 * H * D + channel, mask=ok, other=0)
    state, mean_k, mean_v = finish(moment, sum_k, sum_v, shift_k, shift_v, count, D, W, LINEAR, SHIFT)
    return state, mean_k, mean_v, count


@triton.jit
def _write(
    q, out, state, mean_v, mean_k, q_sn, o_sn, q_off, o_off, live, first, last, scale, eps, T: tl.constexpr,
    PHI: tl.constexpr, LINEAR: tl.constexpr, DOT: tl.constexpr,
):
    """The output of the tokens first <= t < last, without a residual."""
    row = tl.arange(0, T)
    state = operand(state, DOT)
    for t0 in range(first, last, T):
        cell = (t0 + row < last)[:, None] & live
        qt = tl.load(rows_of(q, t0, q_sn, q_off, T), mask=cell, other=0)
        if PHI != "identity":
            qt = phi_of(qt.to(tl.float32), PHI)
        acc = dot(operand(qt, DOT), state, DOT)
        if LINEAR:
            total = tl.sum(tl.where(live, qt.to(tl.float32), 0.0) * mean_k[None, :], 1)
            total = tl.where(total < 0, tl.minimum(total, -eps), tl.maximum(total, eps))
            acc = acc / total[:, None]
        else:
            acc = acc * scale + mean_v[None, :]
        tl.store(rows_of(out, t0, o_sn, o_off, T), acc.to(out.dtype.element_ty), mask=cell)


@triton.jit
def _write_strip(
    q, v, out, mask, weights, state, mean_v, q_sn, v_sn, o_sn, w_sc, w_st, q_off, v_off, channel, live, x0, x1, y0, y1,
    prefix, height, width, scale, W: tl.constexpr, X: tl.constexpr, PHI: tl.constexpr, MASKED: tl.constexpr,
    DOT: tl.constexpr, STAGES: tl.constexpr,
):
    """The output, with the residual, of the columns x0 <= x < x1 and the rows y0 <= y < y1 of the grid."""
    col = x0 + tl.arange(0, X)
    limits = limit_of(col - 1, height, width), limit_of(col, height, width), limit_of(col + 1, height, width)
    state = operand(state * scale, DOT)
    w0, w1, w2, w3, w4, w5, w6, w7, w8 = filter_of(weights, channel, live, w_sc, w_st, False)
    now = tl.zeros((X, W), tl.float32) + mean_v[None, :]
    after = tl.zeros((X, W), tl.float32) + mean_v[None, :]
    for y in tl.range(tl.maximum(y0 - 2, -1), y1, num_stages=STAGES):  # the first one or two only read v
        # All loads lead to the product, as an operand or through its accumulator: that is what makes them pipelined.
        le, he, ri = three_columns(v, mask, y + 1, col, limits, prefix, width, v_sn, v_off, live, MASKED)
        place = tl.cast(prefix + y * width, tl.int64)
        cell = (col < tl.where(y < y0, 0, x1))[:, None] & live
        qt = tl.load(q + place * q_sn + (col[:, None] * q_sn + q_off), mask=cell, other=0)
        if PHI != "identity":
            qt = phi_of(qt.to(tl.float32), PHI)
        left, here, right = le.to(tl.float32), he.to(tl.float32), ri.to(tl.float32)
        acc = across(now, left, here, right, w6, w7, w8)
        now = across(after, left, here, right, w3, w4, w5)
        after = across(mean_v[None, :], left, here, right, w0, w1, w2)
        acc = dot(operand(qt, DOT), state, DOT, acc)
        tl.store(out + place * o_sn + (col[:, None] * o_sn + channel[None, :]), acc.to(out.dtype.element_ty), mask=cell)


@triton.jit(do_not_specialize=["tokens_q", "tokens_k", "height", "width", "prefix", "H"])
def forward_short(
    q, k, v, out, weights, mask, cu, grids, sums, q_sb, q_sn, q_sh, q_sd, k_sb, k_sn, k_sh, k_sd, v_sb, v_sn, v_sh,
    v_sd, o_sb, o_sn, w_sb, w_sc, w_st, H, tokens_q, tokens_k, height, width, prefix, scale, eps, D: tl.constexpr,
    GROUP: tl.constexpr, W: tl.constexpr, T: tl.constexpr, X: tl.constexpr, PHI: tl.constexpr, LINEAR: tl.constexpr,
    RESIDUAL: tl.constexpr, MASKED: tl.constexpr, VARLEN: tl.constexpr, SAVE: tl.constexpr, DOT: tl.constexpr,
    PACKED: tl.constexpr, STAGES: tl.constexpr,
):
    """Everything for one image and group of heads in one program."""
    group, image = tl.program_id(0), tl.program_id(1)
    SHIFT: tl.constexpr = k.dtype.element_ty == tl.float32 and not LINEAR
    head, dim, channel, live = channels_of(group, D, GROUP, W)
    q, n_q = image_of(q, cu, image, tokens_q, q_sb, q_sn, VARLEN)
    k, n_k = image_of(k, cu, image, tokens_k, k_sb, k_sn, VARLEN)
    v, _ = image_of(v, cu, image, tokens_k, v_sb, v_sn, VARLEN)
    out, _ = image_of(out, cu, image, tokens_q, o_sb, o_sn, VARLEN)
    q_off = offsets_of(head, dim, channel, q_sh, q_sd, PACKED)
    k_off = offsets_of(head, dim, channel, k_sh, k_sd, PACKED)
    v_off = offsets_of(head, dim, channel, v_sh, v_sd, PACKED)
    if MASKED:
        mask += tl.cast(image, tl.int64) * tokens_k
    shift_k = _shift(k, mask, k_sn, k_off, live, n_k, W, T, PHI, MASKED, SHIFT)
    shift_v = _shift(v, mask, v_sn, v_off, live, n_k, W, T, "identity", MASKED, SHIFT)
    moment, sum_k, sum_v, count = _sum_keys(
        k, v, mask, shift_k, shift_v, k_sn, v_sn, k_off, v_off, live, 0, n_k, W, T, PHI, MASKED, SHIFT, DOT
    )
    if SAVE:
        store_sums(sums, image, moment, sum_k, sum_v, shift_k, shift_v, count, group, dim, channel, H, D, GROUP, W)
    state, mean_k, mean_v = finish(moment, sum_k, sum_v, shift_k, shift_v, count, D, W, LINEAR, SHIFT)
    if RESIDUAL:
        height, width = grid_of(grids, image, height, width, VARLEN)
        weights += tl.cast(image, tl.int64) * w_sb
        _write(
            q, out, state, mean_v, mean_k, q_sn, o_sn, q_off, channel[None, :], live, 0, prefix, scale, eps, 16, PHI,
            LINEAR, DOT,
        )
        for x0 in range(0, width, X):
            _write_strip(
                q, v, out, mask, weights, state, mean_v, q_sn, v_sn, o_sn, w_sc, w_st, q_off, v_off, channel, live, x0,
                tl.minimum(x0 + X, width), 0, height, prefix, height, width, scale, W, X, PHI, MASKED, DOT, STAGES,
            )
    else:
        _write(
            q, out, state, mean_v, mean_k, q_sn, o_sn, q_off, channel[None, :], live, 0, n_q, scale, eps, T, PHI,
            LINEAR, DOT,
        )


@triton.jit(do_not_specialize=["tokens", "chunk", "H"])
def forward_partial(
    k, v, mask, cu, sums, k_sb, k_sn, k_sh, k_sd, v_sb, v_sn, v_sh, v_sd, H, tokens, chunk, D: tl.constexpr,
    GROUP: tl.constexpr, W: tl.constexpr, T: tl.constexpr, PHI: tl.constexpr, LINEAR: tl.constexpr,
    MASKED: tl.constexpr, VARLEN: tl.constexpr, DOT: tl.constexpr, PACKED: tl.constexpr,
):
    """Sums over one chunk of keys."""
    group, image, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    SHIFT: tl.constexpr = k.dtype.element_ty == tl.float32 and not LINEAR
    head, dim, channel, live = channels_of(group, D, GROUP, W)
    k, n = image_of(k, cu, image, tokens, k_sb, k_sn, VARLEN)
    v, _ = image_of(v, cu, image, tokens, v_sb, v_sn, VARLEN)
    k_off = offsets_of(head, dim, channel, k_sh, k_sd, PACKED)
    v_off = offsets_of(head, dim, channel, v_sh, v_sd, PACKED)
    if MASKED:
        mask += tl.cast(image, tl.int64) * tokens
    shift_k = _shift(k, mask, k_sn, k_off, live, n, W, T, PHI, MASKED, SHIFT)
    shift_v = _shift(v, mask, v_sn, v_off, live, n, W, T, "identity", MASKED, SHIFT)
    moment, sum_k, sum_v, count = _sum_keys(
        k, v, mask, shift_k, shift_v, k_sn, v_sn, k_off, v_off, live, part * chunk,
        tl.minimum(part * chunk + chunk, n), W, T, PHI, MASKED, SHIFT, DOT,
    )
    if part > 0:  # the shift is the same for all parts: the first one brings it
        shift_k, shift_v = tl.zeros((W,), tl.float32), tl.zeros((W,), tl.float32)
    row = part * tl.num_programs(1) + image
    store_sums(sums, row, moment, sum_k, sum_v, shift_k, shift_v, count, group, dim, channel, H, D, GROUP, W)


@triton.jit(do_not_specialize=["parts", "size"])
def add_parts(parts_ptr, out, parts, size, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """(parts, size) -> (size,), in the type of `out`; PARTS parts are read at a time."""
    item = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    part = tl.arange(0, PARTS)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, parts, PARTS):
        cell = (first + part < parts)[:, None] & (item < size)[None, :]
        place = (first + part)[:, None] * tl.cast(size, tl.int64) + item[None, :]
        total += tl.sum(tl.load(parts_ptr + place, mask=cell, other=0), 0)
    tl.store(out + item, total.to(out.dtype.element_ty), mask=item < size)


@triton.jit(do_not_specialize=["tokens", "tokens_k", "chunk", "height", "width", "prefix", "H"])
def forward_write(
    q, v, out, weights, mask, cu, grids, sums, q_sb, q_sn, q_sh, q_sd, v_sb, v_sn, v_sh, v_sd, o_sb, o_sn, w_sb, w_sc,
    w_st, H, tokens, tokens_k, chunk, height, width, prefix, scale, eps, D: tl.constexpr, GROUP: tl.constexpr,
    W: tl.constexpr, T: tl.constexpr, X: tl.constexpr, PHI: tl.constexpr, LINEAR: tl.constexpr, RESIDUAL: tl.constexpr,
    MASKED: tl.constexpr, VARLEN: tl.constexpr, DOT: tl.constexpr, PACKED: tl.constexpr, STAGES: tl.constexpr,
):
    """The output of one chunk: of tokens, or with the residual of grid rows in a strip of X columns."""
    group, image, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    SHIFT: tl.constexpr = q.dtype.element_ty == tl.float32 and not LINEAR
    head, dim, channel, live = channels_of(group, D, GROUP, W)
    q, n = image_of(q, cu, image, tokens, q_sb, q_sn, VARLEN)
    out, _ = image_of(out, cu, image, tokens, o_sb, o_sn, VARLEN)
    q_off = offsets_of(head, dim, channel, q_sh, q_sd, PACKED)
    state, mean_k, mean_v, _ = load_state(sums, image, dim, channel, H, D, GROUP, W, LINEAR, SHIFT)
    if RESIDUAL:
        v, _ = image_of(v, cu, image, tokens_k, v_sb, v_sn, VARLEN)
        v_off = offsets_of(head, dim, channel, v_sh, v_sd, PACKED)
        height, width = grid_of(grids, image, height, width, VARLEN)
        weights += tl.cast(image, tl.int64) * w_sb
        if MASKED:
            mask += tl.cast(image, tl.int64) * tokens_k
        if part == 0:
            _write(
                q, out, state, mean_v, mean_k, q_sn, o_sn, q_off, channel[None, :], live, 0, prefix, scale, eps, 16,
                PHI, LINEAR, DOT,
            )
        strips = tl.maximum(tl.cdiv(width, X), 1)
        x0, y0 = part % strips * X, part // strips * chunk
        if y0 < height:
            _write_strip(
                q, v, out, mask, weights, state, mean_v, q_sn, v_sn, o_sn, w_sc, w_st, q_off, v_off, channel, live, x0,
                tl.minimum(x0 + X, width), y0, tl.minimum(y0 + chunk, height), prefix, height, width, scale, W, X, PHI,
                MASKED, DOT, STAGES,
            )
    else:
        _write(
            q, out, state, mean_v, mean_k, q_sn, o_sn, q_off, channel[None, :], live, part * chunk,
            tl.minimum(part * chunk + chunk, n), scale, eps, T, PHI, LINEAR, DOT,
        )
