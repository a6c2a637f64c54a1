"""SOFT by kernels; the same arguments as the reference, and packed images in one launch."""

import torch
from torch import Tensor

from sightline.ops.common.registration import needs_gradient
from sightline.ops.soft.operator import soft_attend


def soft_attention(
    q: Tensor,
    v: Tensor,
    landmarks: Tensor,
    scale: float,
    normalized: bool,
    iterations: int,
    key_mask: Tensor | None,
) -> Tensor:
    """(B, N, H, D), (B, N, H, D), (B, m, H, D) -> (B, N, H, D)."""
    save = needs_gradient(q, v, landmarks)
    return soft_attend(q, v, landmarks, key_mask, None, None, 0, 0, scale, normalized, iterations, save)[0]


def soft_packed_images(
    q: Tensor,
    v: Tensor,
    landmarks: Tensor,
    scale: float,
    normalized: bool,
    iterations: int,
    cu_seqlens: Tensor,
    cu_landmarks: Tensor,
    longest: int,
    most: int,
) -> Tensor:
    """Images of different sizes, packed as (1, total, H, D), in one launch; the longest and the most landmarks."""
    ends = (t.to(q.device, torch.int32) for t in (cu_seqlens, cu_landmarks))
    save = needs_gradient(q, v, landmarks)
    return soft_attend(q, v, landmarks, None, *ends, longest, most, scale, normalized, iterations, save)[0]
