"""Linear attention: kernel feature maps, normalized by the row sum."""

from torch import Tensor

from sightline import backend as backends
from sightline.ops.checks import (
    as_number,
    check_key_mask,
    check_packed,
    check_same,
    check_tokens,
    full_precision,
    lengths,
    per_sequence,
    reject,
)
from sightline.ops.feature_maps import Affine, check_feature_map
from sightline.ops.linear import reference

NAME = "linear_attention"
IMPLEMENTATIONS = {"torch": reference.linear_attention}
if backends.TRITON_INSTALLED:
    from sightline.ops.linear import triton

    IMPLEMENTATIONS["triton"] = triton.linear_attention


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    phi: str = "relu",
    eps: float = 1e-6,
    key_mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    affine: Affine | None = None,
    backend: str | None = None,
) -> Tensor:
    """Weights phi(q_i).phi(k_j) / sum_j phi(q_i).phi(k_j), in linear time.

    Args:
        q: (batch, tokens, heads, head_dim), any strides.
        k, v: (batch, key tokens, heads, head_dim); v may have a different head dim.
        phi: relu, leaky_relu, elu1, exp, identity or relu_affine. With identity and
            leaky_relu the row sum can cross zero, where the weights are not bounded.
        eps: the mean of phi(q_i).phi(k_j) over the keys that count is kept at least this far from zero, with
            its sign; a query whose scores all vanish gives zero.
        key_mask: (batch, key tokens) booleans, true where the key counts.
        cu_seqlens: packed form: q, k, v are (1, total, heads, head_dim) and this is [0, n1, n1 + n2, ...].
        affine: (weight, bias) of relu_affine: relu(weight x + bias), weight (d, d) or (heads, d, d).
        backend: "auto", "triton" or "torch"; see `sightline.backend`. The kernels take head dims 8 to 128.

    Returns:
        (batch, tokens, heads, head_dim of v), in the dtype of q; sums are taken in float32.

    Example:
        >>> q = torch.randn(2, 196, 6, 32)
        >>> linear_attention(q, q, q, phi="elu1").shape
        torch.Size([2, 196, 6, 32])
    """
    check_tokens(NAME, q=q, k=k, v=v)
    check_same(NAME, 3, q=q, k=k)
    check_same(NAME, 1, k=k, v=v)
    check_key_mask(NAME, key_mask, k)
    check_feature_map(NAME, phi, affine, q.shape[2], q.shape[3], q.device)
    eps = as_number(NAME, "eps", eps)
    if not 0 < eps <= 1e30:
        reject(NAME, f"eps={eps!r}; give a positive number, e.g. 1e-6")
    chosen = backends.choose(NAME, q.device, backend, backends.obstacle(NAME, q, k, v))
    run = IMPLEMENTATIONS[chosen]

    def one(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with full_precision(q.device):
            return run(q, k, v, phi, eps, key_mask, affine)

    if cu_seqlens is None:
        return one(q, k, v)
    check_packed(NAME, key_mask, q=q, k=k, v=v)
    check_same(NAME, 1, q=q, k=k)
    sizes = lengths(NAME, cu_seqlens, q.shape[1])
    if chosen == "triton":
        return triton.linear_attention(q, k, v, phi, eps, None, affine, cu_seqlens, sizes)
    return per_sequence(one, [sizes] * 3, (q, k, v))


__all__ = ["linear_attention"]
