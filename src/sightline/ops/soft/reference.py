"""SOFT and SOFT++ by their definition, with the N x m matrix P in memory.

Softmax-free Linear Transformers (NeurIPS 2021; IJCV 2024).
"""

import torch
from torch import Tensor

from sightline.ops.checks import accumulate_dtype, full_precision, is_exporting
from sightline.ops.soft.newton import RIDGE, STEP, convergence, newton_inverse, step_size


def soft_attention(
    q: Tensor,
    v: Tensor,
    landmarks: Tensor,
    scale: float,
    normalized: bool,
    iterations: int,
    key_mask: Tensor | None,
) -> Tensor:
    """q (B, N, H, D), v (B, N, H, E), landmarks (B, m, H, D) -> (B, N, H, E)."""
    wide = accumulate_dtype(q.dtype)
    q_, v_, l_ = (t.to(wide).transpose(1, 2) for t in (q, v, landmarks))  # B H N D
    with full_precision(q.device):
        weights = gaussian(q_ * scale, l_)  # B H N m
        core = landmark_inverse(l_, normalized, iterations)  # B H m m
        keys = weights
        if key_mask is not None:
            keys, v_ = (t.masked_fill(~key_mask[:, None, :, None], 0.0) for t in (weights, v_))
        # Exported: a graph for any size cannot have P and its transpose in one kernel.
        mixed = (v_.mT @ keys).mT if is_exporting() else keys.mT @ v_
        return (weights @ (core @ mixed)).transpose(1, 2).to(q.dtype)


def gaussian(a: Tensor, b: Tensor) -> Tensor:
    """exp(-||a_i - b_j||^2 / 2) for (..., n, d) and (..., m, d); a distance never goes below zero."""
    square = a.square().sum(-1, keepdim=True) + b.square().sum(-1, keepdim=True).transpose(-1, -2)
    return torch.exp(-0.5 * (square - 2 * a @ b.transpose(-1, -2)).clamp(min=0))


def landmark_matrix(landmarks: Tensor, normalized: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The matrix that is inverted (..., m, m), Newton's step size for it, and the row sums of A (..., m, 1)."""
    eye = torch.eye(landmarks.shape[-2], dtype=landmarks.dtype, device=landmarks.device)
    matrix = torch.where(eye.bool(), 1.0, gaussian(landmarks, landmarks))  # the diagonal is exactly one
    step = step_size(matrix, STEP[normalized])
    return matrix if normalized else matrix + RIDGE * eye, step, matrix.sum(-1, keepdim=True)


def landmark_inverse(landmarks: Tensor, normalized: bool, iterations: int) -> Tensor:
    """A^+ of the landmarks' Gaussian matrix (SOFT), or D^-1/2 A^+ D^-1/2, D the row sums of A (SOFT++)."""
    matrix, step, degrees = landmark_matrix(landmarks, normalized)
    inverse = newton_inverse(matrix, step, iterations)
    if not normalized:
        return inverse
    root = degrees.rsqrt()  # m >= 1 and a unit diagonal keep the row sums above one
    return root * inverse * root.transpose(-1, -2)


def newton_residual(landmarks: Tensor, *, normalized: bool, iterations: int = 20) -> Tensor:
    """How far the inverse is from one: ||A X A - A|| / ||A||, the Frobenius norm, after `iterations` Newton steps.

    Args:
        landmarks: (batch, m, heads, head_dim), as `soft_attention` takes them.
        normalized: as in `soft_attention`: A + 0.01 I is inverted by SOFT, A by SOFT++.
        iterations: steps; as many are taken as `soft_attention` would.

    Returns:
        (batch, heads), in float32 (float64 for float64 landmarks).

    Example:
        >>> newton_residual(torch.randn(2, 49, 4, 32), normalized=True).shape
        torch.Size([2, 4])
    """
    with full_precision(landmarks.device):
        wide = landmarks.to(accumulate_dtype(landmarks.dtype)).transpose(1, 2)
        matrix, step, _ = landmark_matrix(wide, normalized)
        return convergence(matrix, newton_inverse(matrix, step, iterations))
