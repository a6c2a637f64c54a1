"""SOFT and SOFT++: Gaussian attention without softmax, through landmarks."""

from torch import Tensor

from sightline import backend as backends
from sightline.ops.checks import (
    check_key_mask,
    check_packed,
    check_same,
    check_tokens,
    full_precision,
    lengths,
    per_sequence,
)
from sightline.ops.soft import reference

NAME = "soft_attention"
IMPLEMENTATIONS = {"torch": reference.soft_attention}


def soft_attention(
    q: Tensor,
    v: Tensor,
    landmarks: Tensor,
    *,
    normalized: bool,
    iterations: int = 20,
    key_mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    cu_landmarks: Tensor | None = None,
    backend: str | None = None,
) -> Tensor:
    """P A^+ (P^T v), P = exp(-||q - l||^2 / 2) and A = exp(-||l - l'||^2 / 2); queries are their own keys.

    Args:
        q: (batch, tokens, heads, head_dim), any strides, already divided by head_dim ** 0.25 as in models.
        v: (batch, tokens, heads, head_dim); may have a head dim of its own.
        landmarks: (batch, m, heads, head_dim), m at least one.
        normalized: False for SOFT, which inverts A + 0.01 I; True for SOFT++, D^-1/2 A^+ D^-1/2 with
            D = diag(A 1).
        iterations: Newton-Raphson steps of the inverse; the gradient is the inverse's, not that of the steps.
        key_mask: (batch, tokens) booleans, true where the token counts as a key.
        cu_seqlens, cu_landmarks: packed form: q and v are (1, total, heads, head_dim), landmarks (1, total
            landmarks, heads, head_dim), and these are the cumulative lengths [0, n1, n1 + n2, ...] of each.
        backend: "auto", "torch"; see `sightline.backend`.

    Returns:
        (batch, tokens, heads, head_dim of v), in the dtype of q; the m x m part is always in float32.

    Example:
        >>> q = torch.randn(2, 196, 4, 32) / 32**0.25
        >>> soft_attention(q, q, q[:, ::4], normalized=True).shape
        torch.Size([2, 196, 4, 32])
    """
    check_tokens(NAME, q=q, v=v, landmarks=landmarks)
    check_same(NAME, 3, q=q, landmarks=landmarks)
    check_same(NAME, 1, q=q, v=v)
    check_key_mask(NAME, key_mask, q)
    if landmarks.shape[1] == 0:
        raise ValueError(f"{NAME}: landmarks has shape {tuple(landmarks.shape)}; give at least one landmark")
    if not isinstance(iterations, int) or iterations < 1:
        raise ValueError(f"{NAME}: iterations={iterations!r}; give a whole number of Newton steps, at least one")
    if not isinstance(normalized, bool):
        raise ValueError(f"{NAME}: normalized={normalized!r}; give False for SOFT or True for SOFT++")
    run = IMPLEMENTATIONS[backends.choose(NAME, q.device, backend)]
    if (cu_seqlens is None) != (cu_landmarks is None):
        raise ValueError(f"{NAME}: cu_seqlens and cu_landmarks go together; give both or neither")

    def one(q: Tensor, v: Tensor, landmarks: Tensor) -> Tensor:
        with full_precision(q.device):
            return run(q, v, landmarks, normalized, iterations, key_mask)

    if cu_seqlens is None or cu_landmarks is None:
        return one(q, v, landmarks)
    check_packed(NAME, key_mask, q=q, v=v, landmarks=landmarks)
    sizes = lengths(NAME, cu_seqlens, q.shape[1])
    counts = lengths(NAME, cu_landmarks, landmarks.shape[1], name="cu_landmarks")
    if len(counts) != len(sizes) or min(counts) == 0:
        raise ValueError(
            f"{NAME}: cu_landmarks gives {counts} landmarks for {len(sizes)} images; give at least one for every image"
        )
    return per_sequence(one, [sizes, sizes, counts], (q, v, landmarks))


__all__ = ["soft_attention"]
