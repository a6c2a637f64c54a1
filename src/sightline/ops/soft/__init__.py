"""SOFT and SOFT++: Gaussian attention without softmax, through landmarks."""

from torch import Tensor

from sightline import backend as backends
from sightline.ops.checks import (
    as_number,
    check_key_mask,
    check_packed,
    check_same,
    check_tokens,
    is_whole,
    lengths,
    per_sequence,
    reject,
)
from sightline.ops.soft import reference
from sightline.ops.soft.reference import newton_residual
from sightline.util.errors import shown

NAME = "soft_attention"
IMPLEMENTATIONS = {"torch": reference.soft_attention}
if backends.TRITON_INSTALLED:
    from sightline.ops.soft import triton

    IMPLEMENTATIONS["triton"] = triton.soft_attention


def soft_attention(
    q: Tensor,
    v: Tensor,
    landmarks: Tensor,
    *,
    normalized: bool,
    iterations: int = 20,
    scale: float = 1.0,
    key_mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    cu_landmarks: Tensor | None = None,
    backend: str | None = None,
) -> Tensor:
    """P A^+ (P^T v), P = exp(-||q - l||^2 / 2) and A = exp(-||l - l'||^2 / 2); queries are their own keys.

    The inverse is a smooth pseudo-inverse: eigenvalues of A well below ||A||_1 2^(-iterations / 2) count as zero, so
    that coinciding landmarks (a flat image) give the result of `torch.linalg.pinv` and finite gradients; see
    `sightline.ops.soft.newton`.

    Args:
        q: (batch, tokens, heads, head_dim), any strides; models divide it by head_dim ** 0.25, before or by `scale`.
        v: (batch, tokens, heads, head_dim); may have a different head dim.
        landmarks: (batch, m, heads, head_dim), m at least one.
        normalized: False for SOFT, which inverts A + 0.01 I; True for SOFT++, D^-1/2 A^+ D^-1/2 with
            D = diag(A 1).
        iterations: Newton-Raphson steps of the inverse, at most 30 (59 in float64): more would
            only amplify rounding errors. The gradient is that of the inverse, not of the steps.
        scale: factor on q.
        key_mask: (batch, tokens) booleans, true where the token counts as a key.
        cu_seqlens, cu_landmarks: packed form: q and v are (1, total, heads, head_dim), landmarks (1, total
            landmarks, heads, head_dim), and these are the cumulative lengths [0, n1, n1 + n2, ...] of each.
        backend: "auto", "triton" or "torch"; see `sightline.backend`. The kernels take head dims 8 to 128, the same
            for q and v, and up to 4,096 landmarks; their memory is O(N d + m^2) where
            the reference's is O(N m).

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
    scale = as_number(NAME, "scale", scale)
    if landmarks.shape[1] == 0:
        reject(NAME, f"landmarks has shape {tuple(landmarks.shape)}; give at least one landmark")
    if not is_whole(iterations) or iterations < 1:
        reject(NAME, f"iterations={shown(iterations)}; give a whole number of Newton steps, at least one")
    if not isinstance(normalized, bool):
        reject(NAME, f"normalized={shown(normalized)}; give False for SOFT or True for SOFT++")
    if (cu_seqlens is None) != (cu_landmarks is None):
        reject(NAME, "cu_seqlens and cu_landmarks go together; give both or neither")
    if cu_seqlens is None or cu_landmarks is None:
        run = IMPLEMENTATIONS[_choose(q, v, landmarks, landmarks.shape[1], backend)]
        return run(q, v, landmarks, scale, normalized, iterations, key_mask)
    check_packed(NAME, key_mask, q=q, v=v, landmarks=landmarks)
    sizes = lengths(NAME, cu_seqlens, q.shape[1])
    counts = lengths(NAME, cu_landmarks, landmarks.shape[1], name="cu_landmarks")
    if len(counts) != len(sizes) or min(counts) == 0:
        reject(NAME, f"cu_landmarks gives {counts} landmarks for {len(sizes)} images; give at least one per image")
    most = max(counts)
    if _choose(q, v, landmarks, most, backend) == "triton":
        ends = (cu_seqlens, cu_landmarks)
        return triton.soft_attention(q, v, landmarks, scale, normalized, iterations, None, ends, max(sizes), most)

    def one(q: Tensor, v: Tensor, landmarks: Tensor) -> Tensor:
        return reference.soft_attention(q, v, landmarks, scale, normalized, iterations, None)

    return per_sequence(one, [sizes, sizes, counts], (q, v, landmarks))


def _choose(q: Tensor, v: Tensor, landmarks: Tensor, most: int, backend: str | None) -> str:
    return backends.choose(NAME, q.device, backend, backends.obstacle(NAME, q, landmarks, v, landmarks=most))


__all__ = ["newton_residual", "soft_attention"]
