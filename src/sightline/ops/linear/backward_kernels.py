"""Backward kernels of InLine and linear attention. With G = d(out), in the notation of `forward_kernels`:

    dphi(q_i) = s G_i S^T                dS = sum_i phi(q_i)^T G_i      dw_t = sum_i G_i v_(i+t)
    dphi(k_j) = (v_j - c_v) E^T + a      dv_j = (phi(k_j) - c_k) E + u + sum_t w_t G_(j-t)

InLine: E = s dS / n, c = the means, u = sum_i G_i / n, a = 0. Linear attention divides G by the row's total first, and
has E = dS / n, c = 0, u = 0, a = sum_i phi(q_i) d(total_i) / n.

Small images take one program for everything (`backward_short`). Others are cut as in the forward pass:
`backward_queries` writes dq and partial sums over i, which `add_parts` adds up; `backward_keys` writes dk, dv and
partial sums of dw.
"""

import triton
import triton.language as tl

from sightline.ops.common.tiles import dot, image_of, operand
from sightline.ops.linear.forward_kernels import load_state
from sightline.ops.linear.tiles import (
    across,
    cells_of,
    filter_of,
    grid_of,
    grid_row,
    limit_of,
    limits_of,
    live_of,
    matrix_of,
    pairs_of,
    phi_of,
    rows_of,
    same_head,
    slope_of,
    three_columns,
)


@triton.jit
def _pass_queries(
    q, q_token, g, g_token, dq, d_token, state, mean_k, live, first, last, scale, eps, W: tl.constexpr,
    T: tl.constexpr, PHI: tl.constexpr, LINEAR: tl.constexpr, DOT: tl.constexpr,
):
    """Writes dq of the tokens first <= t < last; sums dS (W, W) and the side row (W,).

    The side row is sum_i G_i for InLine and sum_i phi(q_i) d(total_i) for linear attention.
    """
    d_state = tl.zeros((W, W), tl.float32)
    side = tl.zeros((16, W), tl.float32)
    row = tl.arange(0, T)
    ones = operand(tl.full((16, T), 1.0, tl.float32), DOT)
    state = operand(state, DOT)
    for t0 in range(first, last, T):
        cell = (t0 + row < last)[:, None] & live
        qt = tl.load(rows_of(q, q_token, t0, T, W), mask=cell, other=0)  # T W
        gt = tl.load(rows_of(g, g_token, t0, T, W), mask=cell, other=0)  # T W
        ft = qt
        if PHI != "identity":
            ft = tl.where(cell, phi_of(qt.to(tl.float32), PHI), 0.0)
        gs = gt
        if LINEAR:
            wide = ft.to(tl.float32)
            total = tl.sum(wide * mean_k[None, :], 1)
            safe = tl.where(total < 0, tl.minimum(total, -eps), tl.maximum(total, eps))
            gs = gt.to(tl.float32) / safe[:, None]
            d_total = -tl.sum(gs * dot(operand(ft, DOT), state, DOT), 1) / safe
            d_total = tl.where(tl.abs(total) < eps, 0.0, d_total)
            side += dot(ones, operand(wide * d_total[:, None], DOT), DOT)
        else:
            side += dot(ones, operand(gt, DOT), DOT)
        gs = operand(gs, DOT)
        d_state += dot(tl.trans(operand(ft, DOT)), gs, DOT)
        df = dot(gs, tl.trans(state), DOT)
        if LINEAR:
            df += d_total[:, None] * mean_k[None, :]
        else:
            df *= scale
        if PHI != "identity":
            df *= slope_of(qt.to(tl.float32), PHI)
        tl.store(rows_of(dq, d_token, t0, T, W), df.to(dq.dtype.element_ty), mask=cell)
    return d_state, tl.sum(side, 0) / 16


@triton.jit
def _moment_gradient(
    d_state, side, mean_k, mean_v, count, scale, D: tl.constexpr, W: tl.constexpr, LINEAR: tl.constexpr,
    DOT: tl.constexpr,
):
    """E as an operand, the rows u and a, and what to subtract from keys and values before the product.

    In bfloat16 the means are multiplied with the rounded E and go into u and a, which gives the same and leaves the
    tiles as they were read; other types subtract them first, since the product may round its operands.
    """
    share = 1.0 / tl.maximum(count, 1.0)
    side *= share
    d_moment = operand(tl.where(same_head(D, W), d_state, 0.0) * (share if LINEAR else share * scale), DOT)
    nothing = tl.zeros((W,), tl.float32)
    if LINEAR:
        return d_moment, nothing, side, nothing, nothing
    elif DOT == "bf16":
        wide = d_moment.to(tl.float32)
        u, a = side - tl.sum(mean_k[:, None] * wide, 0), -tl.sum(wide * mean_v[None, :], 1)
        return d_moment, u, a, nothing, nothing
    else:
        return d_moment, side, nothing, mean_k, mean_v


@triton.jit
def _key_gradients(
    kt, vt, d_moment, to_value, to_key, center_k, center_v, PHI: tl.constexpr, LINEAR: tl.constexpr, DOT: tl.constexpr,
    DK: tl.constexpr, DV: tl.constexpr,
):
    """dk and dv (T, W) of keys and values; what is in `to_key` and `to_value` already is added."""
    ft = kt
    if PHI != "identity":
        ft = phi_of(kt.to(tl.float32), PHI)
    if not LINEAR and DOT != "bf16":
        ft = ft.to(tl.float32) - center_k[None, :]
        vt = vt.to(tl.float32) - center_v[None, :]
    d_value, d_key = to_value, to_key
    if DV:
        d_value = dot(operand(ft, DOT), d_moment, DOT, to_value)
    if DK:
        d_key = dot(operand(vt, DOT), tl.trans(d_moment), DOT, to_key)
        if PHI != "identity":
            d_key *= slope_of(kt.to(tl.float32), PHI)
    return d_key, d_value


@triton.jit
def _pass_keys(
    k, k_token, v, v_token, dk, dv, d_token, mask, d_moment, u, a, center_k, center_v, live, first, last,
    W: tl.constexpr, T: tl.constexpr, PHI: tl.constexpr, LINEAR: tl.constexpr, MASKED: tl.constexpr, DOT: tl.constexpr,
    DK: tl.constexpr, DV: tl.constexpr,
):
    """Writes dk and dv of the tokens first <= t < last, without a residual; returns the sum of dv, (T, W)."""
    row = tl.arange(0, T)
    nothing = tl.zeros((T, W), tl.float32)
    total = nothing
    for t0 in range(first, last, T):
        ok = t0 + row < last
        cell = ok[:, None] & live
        counted = cell
        if MASKED:
            counted &= (tl.load(mask + t0 + row, mask=ok, other=0) != 0)[:, None]  # T W
        kt = tl.load(rows_of(k, k_token, t0, T, W), mask=counted, other=0)  # T W
        vt = tl.load(rows_of(v, v_token, t0, T, W), mask=counted, other=0)  # T W
        d_key, d_value = _key_gradients(
            kt, vt, d_moment, nothing + u[None, :], nothing + a[None, :], center_k, center_v, PHI, LINEAR, DOT, DK, DV
        )
        if MASKED:
            d_key, d_value = tl.where(counted, d_key, 0.0), tl.where(counted, d_value, 0.0)
        if DK:
            tl.store(rows_of(dk, d_token, t0, T, W), d_key.to(dk.dtype.element_ty), mask=cell)
        if DV:
            tl.store(rows_of(dv, d_token, t0, T, W), d_value.to(dv.dtype.element_ty), mask=cell)
            total += tl.where(cell, d_value, 0.0)
    return total


@triton.jit
def _pass_strip(
    k, k_token, v, v_token, g, g_token, dk, dv, d_token, mask, taps, dw, C, live, d_moment, u, a, center_k, center_v,
    x0, x1, y0, y1, height, width, prefix, W: tl.constexpr, X: tl.constexpr, PHI: tl.constexpr, MASKED: tl.constexpr,
    DOT: tl.constexpr, STAGES: tl.constexpr, DK: tl.constexpr, DW: tl.constexpr, TOTAL: tl.constexpr,
):
    """Writes dk and dv of the columns x0 <= x < x1 and rows y0 <= y < y1 of the grid; with DW their share of dw (9, C).
    Returns the sum of dv, (X, W), if TOTAL.

    Down the grid as in the forward pass: a row of G read three times serves three rows of dv. The filter is turned,
    for G_(j-t) is the neighbor on the other side. dk and the product in dv are made one row ahead, where k and v come
    with the row of G: then all loads lead to a product, so that they are pipelined. dw takes the values of a row and
    of the one above it times that row of G, and the values times the row of G above it.
    """
    col = x0 + tl.arange(0, X)
    limits = limits_of(col, height, width)
    ours = limit_of(col, y1, x1)
    w0, w1, w2, w3, w4, w5, w6, w7, w8 = taps
    nothing = tl.zeros((X, W), tl.float32)
    d0, d1, d2, d3, d4, d5, d6, d7, d8 = (
        nothing, nothing, nothing, nothing, nothing, nothing, nothing, nothing, nothing
    )  # fmt: skip
    total = nothing
    now, after = nothing + u[None, :], nothing + u[None, :]
    none = tl.zeros((X, W), g.dtype.element_ty)
    le_above, he_above, ri_above, v_above = none, none, none, tl.zeros((X, W), v.dtype.element_ty)
    for y in tl.range(tl.maximum(y0 - 2, -1), y1, num_stages=STAGES):  # the first one or two write no dv
        le, he, ri = three_columns(g, g_token, mask, y + 1, col, limits, width, prefix, live, W, False)  # X W each
        inside = tl.where(y + 1 < y0, 0, ours)
        kt = grid_row(k, k_token, mask, y + 1, col, inside, width, prefix, live, W, MASKED)  # X W
        vt = grid_row(v, v_token, mask, y + 1, col, inside, width, prefix, live, W, MASKED)  # X W
        left, here, right = le.to(tl.float32), he.to(tl.float32), ri.to(tl.float32)
        d_value = across(now, left, here, right, w6, w7, w8)
        now = across(after, left, here, right, w3, w4, w5)
        after = across(nothing + u[None, :], left, here, right, w0, w1, w2)
        d_key, now = _key_gradients(kt, vt, d_moment, now, nothing + a[None, :], center_k, center_v, PHI, False, DOT,
                                    DK, True)
        if DW:
            above, value = v_above.to(tl.float32), vt.to(tl.float32)
            d0, d1, d2 = d0 + above * right, d1 + above * here, d2 + above * left
            d3, d4, d5 = d3 + value * right, d4 + value * here, d5 + value * left
            d6 += value * ri_above.to(tl.float32)
            d7 += value * he_above.to(tl.float32)
            d8 += value * le_above.to(tl.float32)
            le_above, he_above, ri_above, v_above = le, he, ri, vt
        here_ok = col < tl.where(y < y0, 0, x1)
        below_ok = col < tl.where((y + 1 < y0) | (y + 1 >= y1), 0, x1)
        first = prefix + y * width
        if MASKED:
            counted = tl.load(mask + first + col, mask=here_ok, other=0) != 0  # X
            d_value = tl.where(counted[:, None], d_value, 0.0)
            counted = tl.load(mask + first + width + col, mask=below_ok, other=0) != 0  # X
            d_key = tl.where(counted[:, None], d_key, 0.0)
        if TOTAL:
            total += tl.where(here_ok[:, None], d_value, 0.0)
        cells = cells_of(dv, d_token, first, col, W)
        tl.store(cells, d_value.to(dv.dtype.element_ty), mask=here_ok[:, None] & live)
        if DK:
            below = cells_of(dk, d_token, first + width, col, W)
            tl.store(below, d_key.to(dk.dtype.element_ty), mask=below_ok[:, None] & live)
    if DW:
        _store_taps(dw, C, (d0, d1, d2, d3, d4, d5, d6, d7, d8), live, W)
    return total


@triton.jit
def _pass_line(
    k, k_token, v, v_token, g, g_token, dk, dv, d_token, mask, taps, dw, C, live, d_moment, u, a, center_k, center_v,
    first, last, width, prefix, W: tl.constexpr, X: tl.constexpr, PHI: tl.constexpr, MASKED: tl.constexpr,
    DOT: tl.constexpr, STAGES: tl.constexpr, DK: tl.constexpr, TOTAL: tl.constexpr,
):
    """`_pass_strip` for a grid of one row, along it: the columns first <= x < last, with a row of the filter."""
    nothing = tl.zeros((X, W), tl.float32)
    d3, d4, d5, total = nothing, nothing, nothing, nothing
    col = tl.arange(0, X)
    for x in tl.range(first, last, X, num_stages=STAGES):
        limits, ours, start = limits_of(x + col, 1, width), limit_of(x + col, 1, last), prefix + x
        le, he, ri = three_columns(g, g_token, mask, 0, col, limits, width, start, live, W, False)  # X W each
        kt = grid_row(k, k_token, mask, 0, col, ours, width, start, live, W, MASKED)  # X W
        vt = grid_row(v, v_token, mask, 0, col, ours, width, start, live, W, MASKED)  # X W
        left, here, right = le.to(tl.float32), he.to(tl.float32), ri.to(tl.float32)
        d_value = across(nothing + u[None, :], left, here, right, taps[3], taps[4], taps[5])
        d_key, d_value = _key_gradients(kt, vt, d_moment, d_value, nothing + a[None, :], center_k, center_v, PHI, False,
                                        DOT, DK, True)
        value = vt.to(tl.float32)
        d3, d4, d5 = d3 + value * right, d4 + value * here, d5 + value * left
        ok = x + col < last
        if MASKED:
            counted = (tl.load(mask + start + col, mask=ok, other=0) != 0)[:, None]  # X 1
            d_key, d_value = tl.where(counted, d_key, 0.0), tl.where(counted, d_value, 0.0)
        cell = ok[:, None] & live
        if TOTAL:
            total += tl.where(cell, d_value, 0.0)
        tl.store(cells_of(dv, d_token, start, col, W), d_value.to(dv.dtype.element_ty), mask=cell)
        if DK:
            tl.store(cells_of(dk, d_token, start, col, W), d_key.to(dk.dtype.element_ty), mask=cell)
    none = tl.zeros((1, W), tl.float32)
    _store_taps(dw, C, (none, none, none, d3, d4, d5, none, none, none), live, W)
    return total


@triton.jit
def _store_columns(columns, part, image, images, state, side, total, scale, C, channel, live, W: tl.constexpr):
    """Row `image` of columns (1 + parts, images, C): the sum of dv of a part and, by the first part, that of dq."""
    at = columns + tl.cast(image, tl.int64) * C + channel + tl.arange(0, W)[None, :]
    if part == 0:
        sum_q = tl.sum(state * side[None, :], 1) * scale
        tl.store(at, sum_q[None, :], mask=live)
    tl.store(at + tl.cast(part + 1, tl.int64) * images * C, total[None, :], mask=live)


@triton.jit
def _pass_taps(
    v, v_token, g, g_token, mask, dw, C, live, x0, x1, height, width, prefix, W: tl.constexpr, X: tl.constexpr,
    MASKED: tl.constexpr, STAGES: tl.constexpr,
):
    """dw (9, C) of the columns x0 <= x < x1: what G has there, times its neighbors in v.

    Down the grid with the three rows of G that a row of v is a neighbor of.
    """
    col = x0 + tl.arange(0, X)
    limits = limits_of(col, height, width)
    ours = limit_of(col, height, x1)
    nothing = tl.zeros((X, W), tl.float32)
    d0, d1, d2, d3, d4, d5, d6, d7, d8 = (
        nothing, nothing, nothing, nothing, nothing, nothing, nothing, nothing, nothing
    )  # fmt: skip
    above, same = nothing, tl.zeros((X, W), g.dtype.element_ty)
    for y in tl.range(-1, height, num_stages=STAGES):
        le, he, ri = three_columns(v, v_token, mask, y, col, limits, width, prefix, live, W, MASKED)  # X W each
        under = grid_row(g, g_token, mask, y + 1, col, ours, width, prefix, live, W, False)  # X W
        left, here, right = le.to(tl.float32), he.to(tl.float32), ri.to(tl.float32)
        level, below = same.to(tl.float32), under.to(tl.float32)
        d0, d1, d2 = d0 + left * below, d1 + here * below, d2 + right * below
        d3, d4, d5 = d3 + left * level, d4 + here * level, d5 + right * level
        d6, d7, d8 = d6 + left * above, d7 + here * above, d8 + right * above
        above, same = level, under
    _store_taps(dw, C, (d0, d1, d2, d3, d4, d5, d6, d7, d8), live, W)


@triton.jit
def _store_taps(dw, C, totals, live, W: tl.constexpr):
    for tap in tl.static_range(9):
        tl.store(dw + tap * C + tl.arange(0, W)[None, :], tl.sum(totals[tap], 0)[None, :], mask=live)


@triton.jit(do_not_specialize=["tokens", "chunk", "H"])
def backward_queries(
    q, q_batch, q_token, g, g_batch, g_token, cu, sums, dq, d_batch, d_token, d_sums, H, tokens, chunk, scale, eps,
    D: tl.constexpr, GROUP: tl.constexpr, W: tl.constexpr, T: tl.constexpr, PHI: tl.constexpr, LINEAR: tl.constexpr,
    VARLEN: tl.constexpr, DOT: tl.constexpr,
):
    """dq and, as one row (H, D, D), (H, D) of `d_sums`, the sums over one chunk of queries."""
    group, image, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    SHIFT: tl.constexpr = q.dtype.element_ty == tl.float32 and not LINEAR
    channel = group * GROUP * D
    scale, eps = tl.cast(scale, tl.float32), tl.cast(eps, tl.float32)
    q, n = image_of(q, q_batch, q_token, cu, image, tokens, channel, VARLEN)
    g, _ = image_of(g, g_batch, g_token, cu, image, tokens, channel, VARLEN)
    dq, _ = image_of(dq, d_batch, d_token, cu, image, tokens, channel, VARLEN)
    state, mean_k, _, _ = load_state(sums, image, group, H, D, GROUP, W, LINEAR, SHIFT)
    d_state, side = _pass_queries(
        q, q_token, g, g_token, dq, d_token, state, mean_k, live_of(D, GROUP, W), part * chunk,
        tl.minimum(part * chunk + chunk, n), scale, eps, W, T, PHI, LINEAR, DOT,
    )
    ok, pair = pairs_of(D, GROUP, W)
    d_sums += tl.cast(part * tl.num_programs(1) + image, tl.int64) * H * D * (D + 1)
    tl.store(d_sums + matrix_of(group, D, GROUP, W), d_state, mask=pair)
    tl.store(d_sums + H * D * D + channel + tl.arange(0, W), side, mask=ok)


@triton.jit(do_not_specialize=["tokens_q", "tokens", "chunk", "height", "width", "prefix", "H"])
def backward_keys(
    k, k_batch, k_token, v, v_batch, v_token, g, g_batch, g_token, weights, mask, cu, grids, sums, d_sums, dk,
    d_batch, d_token, dv, dk_start, dv_start, dw, columns, H, tokens_q, tokens, chunk, height, width, prefix, scale,
    D: tl.constexpr, GROUP: tl.constexpr, W: tl.constexpr, T: tl.constexpr, X: tl.constexpr, PHI: tl.constexpr,
    LINEAR: tl.constexpr, RESIDUAL: tl.constexpr, LINE: tl.constexpr, MASKED: tl.constexpr, VARLEN: tl.constexpr,
    DOT: tl.constexpr, STAGES: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
):
    """dk and dv of one chunk, of tokens, of grid rows in a strip, or of columns in a LINE, a grid of one row; with the
    residual, dv is always made, and the chunk's share of dw, (part, image, 9, C), and of the sums of dq and dv if there
    are `columns`.

    dk and dv lie `dk_start` and `dv_start` channels into their tensors, which are one if `dv` is None.
    """
    group, image, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    SHIFT: tl.constexpr = k.dtype.element_ty == tl.float32 and not LINEAR
    live = live_of(D, GROUP, W)
    channel = group * GROUP * D
    if dv is None:
        dv = dk
    scale = tl.cast(scale, tl.float32)
    k, n = image_of(k, k_batch, k_token, cu, image, tokens, channel, VARLEN)
    v, _ = image_of(v, v_batch, v_token, cu, image, tokens, channel, VARLEN)
    dk, _ = image_of(dk, d_batch, d_token, cu, image, tokens, dk_start + channel, VARLEN)
    dv, _ = image_of(dv, d_batch, d_token, cu, image, tokens, dv_start + channel, VARLEN)
    if MASKED:
        mask += tl.cast(image, tl.int64) * tokens
    state, mean_k, mean_v, count = load_state(sums, image, group, H, D, GROUP, W, LINEAR, SHIFT)
    ok, pair = pairs_of(D, GROUP, W)
    d_sums += tl.cast(image, tl.int64) * H * D * (D + 1)
    d_state = tl.load(d_sums + matrix_of(group, D, GROUP, W), mask=pair, other=0)  # W W
    side = tl.load(d_sums + H * D * D + channel + tl.arange(0, W), mask=ok, other=0)  # W
    d_moment, u, a, center_k, center_v = _moment_gradient(
        d_state, side, mean_k, mean_v, count, scale, D, W, LINEAR, DOT
    )
    if RESIDUAL:
        g, _ = image_of(g, g_batch, g_token, cu, image, tokens_q, channel, VARLEN)
        height, width = grid_of(grids, image, height, width, VARLEN)
        last = tl.where(part == 0, prefix, 0)
        ahead = _pass_keys(
            k, k_token, v, v_token, dk, dv, d_token, mask, d_moment, u, a, center_k, center_v, live, 0, last, W, 16,
            PHI, LINEAR, MASKED, DOT, DK, DV,
        )
        strips = tl.maximum(tl.cdiv(width, X), 1)
        x0, y0 = part % strips * X, part // strips * chunk
        taps = filter_of(weights, image, H * D, channel, live, W, True)
        dw += tl.cast(part * tl.num_programs(1) + image, tl.int64) * 9 * H * D + channel
        # Beyond the grid of an image in a pack both write zeros to dw and nothing else.
        if LINE:
            cells = height * width  # images of a pack may have no row
            below = _pass_line(
                k, k_token, v, v_token, g, g_token, dk, dv, d_token, mask, taps, dw, H * D, live, d_moment, u, a,
                center_k, center_v, part * chunk, tl.minimum(part * chunk + chunk, cells), cells, prefix, W, X, PHI,
                MASKED, DOT, STAGES, DK, columns is not None,
            )
        else:
            below = _pass_strip(
                k, k_token, v, v_token, g, g_token, dk, dv, d_token, mask, taps, dw, H * D, live, d_moment, u, a,
                center_k, center_v, x0, tl.minimum(x0 + X, width), y0, tl.minimum(y0 + chunk, height), height, width,
                prefix, W, X, PHI, MASKED, DOT, STAGES, DK, True, columns is not None,
            )
        if columns is not None:
            total = tl.sum(ahead, 0) + tl.sum(below, 0)
            images = tl.num_programs(1)
            _store_columns(columns, part, image, images, state, side, total, scale, H * D, channel, live, W)
    else:
        _pass_keys(
            k, k_token, v, v_token, dk, dv, d_token, mask, d_moment, u, a, center_k, center_v, live, part * chunk,
            tl.minimum(part * chunk + chunk, n), W, T, PHI, LINEAR, MASKED, DOT, DK, DV,
        )


@triton.jit(do_not_specialize=["tokens_q", "tokens", "height", "width", "prefix", "strips", "H"])
def backward_short(
    q, q_batch, q_token, k, k_batch, k_token, v, v_batch, v_token, g, g_batch, g_token, weights, mask, cu, grids, sums,
    dq, dq_batch, d_token, dk, dv, dk_batch, dk_start, dv_start, dw, columns, strips, H, tokens_q, tokens, height,
    width, prefix, scale, eps, D: tl.constexpr, GROUP: tl.constexpr, W: tl.constexpr, T: tl.constexpr, X: tl.constexpr,
    PHI: tl.constexpr, LINEAR: tl.constexpr, RESIDUAL: tl.constexpr, MASKED: tl.constexpr, VARLEN: tl.constexpr,
    DOT: tl.constexpr, STAGES: tl.constexpr,
):
    """One image and group of heads: dq, dk and dv by one program, and dw (strip, image, 9, C) by another.

    dq, dk and dv are one tensor if `dk` is None. The sums of dq and dv go to `columns`, if there are any.
    """
    group, image = tl.program_id(0), tl.program_id(1)
    SHIFT: tl.constexpr = k.dtype.element_ty == tl.float32 and not LINEAR
    live = live_of(D, GROUP, W)
    channel = group * GROUP * D
    if dk is None:
        dk = dq
        dv = dq
    scale, eps = tl.cast(scale, tl.float32), tl.cast(eps, tl.float32)
    g, n_q = image_of(g, g_batch, g_token, cu, image, tokens_q, channel, VARLEN)
    v, n = image_of(v, v_batch, v_token, cu, image, tokens, channel, VARLEN)
    if RESIDUAL:
        height, width = grid_of(grids, image, height, width, VARLEN)
    if MASKED:
        mask += tl.cast(image, tl.int64) * tokens
    if tl.program_id(2) == 1:
        if RESIDUAL:
            dw += tl.cast(image, tl.int64) * 9 * H * D + channel
            for x0 in range(0, strips * X, X):
                _pass_taps(
                    v, v_token, g, g_token, mask, dw, H * D, live, x0, tl.minimum(x0 + X, width), height, width, prefix,
                    W, X, MASKED, STAGES,
                )
                dw += tl.num_programs(1) * 9 * H * D
    else:
        q, _ = image_of(q, q_batch, q_token, cu, image, tokens_q, channel, VARLEN)
        k, _ = image_of(k, k_batch, k_token, cu, image, tokens, channel, VARLEN)
        dq, _ = image_of(dq, dq_batch, d_token, cu, image, tokens_q, channel, VARLEN)
        dk, _ = image_of(dk, dk_batch, d_token, cu, image, tokens, dk_start + channel, VARLEN)
        dv, _ = image_of(dv, dk_batch, d_token, cu, image, tokens, dv_start + channel, VARLEN)
        state, mean_k, mean_v, count = load_state(sums, image, group, H, D, GROUP, W, LINEAR, SHIFT)
        d_state, side = _pass_queries(
            q, q_token, g, g_token, dq, d_token, state, mean_k, live, 0, n_q, scale, eps, W, T, PHI, LINEAR, DOT
        )
        d_moment, u, a, center_k, center_v = _moment_gradient(
            d_state, side, mean_k, mean_v, count, scale, D, W, LINEAR, DOT
        )
        last = prefix if RESIDUAL else n
        ahead = _pass_keys(
            k, k_token, v, v_token, dk, dv, d_token, mask, d_moment, u, a, center_k, center_v, live, 0, last, W,
            16 if RESIDUAL else T, PHI, LINEAR, MASKED, DOT, True, True,
        )
        if RESIDUAL:
            total = tl.sum(ahead, 0)
            taps = filter_of(weights, image, H * D, channel, live, W, True)
            for x0 in range(0, width, X):
                below = _pass_strip(
                    k, k_token, v, v_token, g, g_token, dk, dv, d_token, mask, taps, dw, H * D, live, d_moment, u, a,
                    center_k, center_v, x0, tl.minimum(x0 + X, width), 0, height, height, width, prefix, W, X, PHI,
                    MASKED, DOT, STAGES, True, False, columns is not None,
                )
                total += tl.sum(below, 0)
            if columns is not None:
                images = tl.num_programs(1)
                _store_columns(columns, 0, image, images, state, side, total, scale, H * D, channel, live, W)
