"""Prefix tokens that attend by softmax next to patches that do not.

A class token is one query: its row of softmax weights costs N d multiply-adds per head, next to N d^2 of linear
attention, so the cost of the whole stays linear. A student's class token gathers as its teacher's does.

Shape letters: as in `layers.core`; P tokens of the prefix.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from sightline.layers.core import Factors, Place, softmax_rows
from sightline.ops import softmax_attention
from sightline.ops.checks import accumulate_dtype, is_exporting


def by_softmax(out: Tensor, q: Tensor, k: Tensor, v: Tensor, place: Place) -> Tensor:
    """Mixed values (B, N, H, D), those of the prefix by softmax; unchanged without a prefix."""
    if not place.prefix:
        return out
    return replace(out, softmax_attention(q[:, : place.prefix], k, v, key_mask=place.key_mask))


def replace(out: Tensor, first: Tensor) -> Tensor:
    """`out` (B, N, H, D) with `first` (B, P, H, D) as its first tokens, in place if no graph is to be kept."""
    count = first.shape[1]
    if torch.is_grad_enabled() or is_exporting() or torch.jit.is_tracing():
        return torch.cat([first.to(out.dtype), out[:, count:]], 1)
    out[:, :count] = first
    return out


def from_tokens(x: Tensor, weight: Tensor, bias: Tensor | None, num_heads: int, prefix: int) -> Tensor:
    """What `by_softmax` gives for the prefix, (B, P, C), from the tokens x (B, N, C) and their packed projection.

    Neither keys nor values are made: q . (Wk x) = (Wk^T q) . x, and the bias of the keys, the same for all of them,
    makes no difference to softmax.
    """
    dim = x.shape[2]
    w_q, w_k, w_v = weight.unflatten(0, (3, num_heads, -1)).unbind(0)  # H D C
    b_q, b_v = (None, None) if bias is None else (bias[:dim], bias[2 * dim :])
    q = F.linear(x[:, :prefix], w_q.flatten(0, 1), b_q).unflatten(2, (num_heads, -1))
    asked = torch.einsum("bphd,hdc->bphc", q, w_k).flatten(1, 2) * w_q.shape[1] ** -0.5
    scores = torch.bmm(asked, x.transpose(1, 2))  # B PH N
    mixed = torch.bmm(scores.to(accumulate_dtype(x.dtype)).softmax(-1).to(x.dtype), x)
    out = torch.einsum("bphc,hdc->bphd", mixed.unflatten(1, (prefix, num_heads)), w_v).flatten(2)
    return out if b_v is None else out + b_v


def factors_by_softmax(factors: Factors, q: Tensor, k: Tensor, place: Place) -> Factors:
    """Factors of the weights with rows of softmax for the prefix, one more column for each of its tokens."""
    (left, right), count = factors, place.prefix
    if not count:
        return factors
    rows = softmax_rows(q[:, :count], k, place)
    own = torch.eye(left.shape[2], count, dtype=left.dtype, device=left.device).expand(*left.shape[:2], -1, -1)
    left = F.pad(left[:, :, count:], (0, 0, count, 0))
    return torch.cat([left, own], -1), torch.cat([right, rows.transpose(-1, -2).to(right.dtype)], -1)
