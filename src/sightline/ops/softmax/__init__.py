"""Softmax attention: the quadratic baseline."""

from torch import Tensor

from sightline import backend as backends
from sightline.ops.checks import (
    as_number,
    check_bias,
    check_key_mask,
    check_packed,
    check_same,
    check_tokens,
    lengths,
    per_sequence,
    reject,
)
from sightline.ops.softmax import reference

NAME = "softmax_attention"
IMPLEMENTATIONS = {"torch": reference.softmax_attention}


def softmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    bias: Tensor | None = None,
    key_mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    backend: str | None = None,
) -> Tensor:
    """softmax(scale * q k^T + bias) v, through torch's scaled_dot_product_attention.

    Args:
        q: (batch, tokens, heads, head_dim), any strides.
        k, v: (batch, key tokens, heads, head_dim); v may have a different head dim.
        scale: factor on the scores; head_dim ** -0.5 by default.
        bias: added to the scores; broadcastable to (batch, heads, tokens, key tokens).
        key_mask: (batch, key tokens) booleans, true where the key counts.
        cu_seqlens: packed form: q, k, v are (1, total, heads, head_dim) and this is [0, n1, n1 + n2, ...].
        backend: "auto" or "torch"; see `sightline.backend`.

    Returns:
        (batch, tokens, heads, head_dim of v), in the dtype of q.

    Example:
        >>> q = torch.randn(2, 196, 6, 32)
        >>> softmax_attention(q, q, q).shape
        torch.Size([2, 196, 6, 32])
    """
    check_tokens(NAME, q=q, k=k, v=v)
    check_same(NAME, 3, q=q, k=k)
    check_same(NAME, 1, k=k, v=v)
    check_key_mask(NAME, key_mask, k)
    bias = None if bias is None else check_bias(NAME, bias, q, k)
    run = IMPLEMENTATIONS[backends.choose(NAME, q.device, backend)]
    scale = q.shape[-1] ** -0.5 if scale is None else as_number(NAME, "scale", scale)
    if cu_seqlens is None:
        return run(q, k, v, scale, bias, key_mask)
    check_packed(NAME, key_mask, q=q, k=k, v=v)
    check_same(NAME, 1, q=q, k=k)
    if bias is not None:
        reject(NAME, "bias with cu_seqlens; one bias cannot fit sequences of different length")
    sizes = lengths(NAME, cu_seqlens, q.shape[1])

    def one(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return run(q, k, v, scale, None, None)

    return per_sequence(one, [sizes] * 3, (q, k, v))


__all__ = ["softmax_attention"]
