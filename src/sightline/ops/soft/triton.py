"""SOFT by kernels; the same arguments as the reference, and packed images in one launch."""

import torch
from torch import Tensor

from sightline.ops.common.arguments import contiguous_heads, dot_precision
from sightline.ops.common.operator import needs_gradient
from sightline.ops.soft.operator import soft_attend


def soft_attention(
    q: Tensor,
    v: Tensor,
    landmarks: Tensor,
    scale: float,
    normalized: bool,
    iterations: int,
    key_mask: Tensor | None,
    ends: tuple[Tensor, Tensor] | None = None,
    longest: int = 0,
    most: int = 0,
) -> Tensor:
    """(B, N, H, D), (B, N, H, D), (B, m, H, D) -> (B, N, H, D).

    Packed images are (1, total, H, D); `ends` are the cumulative lengths of tokens and landmarks, `longest` and `most`
    the largest numbers of them.
    """
    cu, cu_landmarks = (None, None) if ends is None else (t.to(q.device, torch.int32) for t in ends)
    mask = None if key_mask is None else key_mask.contiguous()
    return soft_attend(
        contiguous_heads(q), contiguous_heads(v), contiguous_heads(landmarks), mask, cu, cu_landmarks, longest, most,
        scale, normalized, iterations, dot_precision(q.dtype), needs_gradient(q, v, landmarks),
    )[0]  # fmt: skip
