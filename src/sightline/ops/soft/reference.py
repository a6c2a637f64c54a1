"""SOFT and SOFT++ by their definition, with the N x m matrix P in memory.

Softmax-free Linear Transformers (NeurIPS 2021; IJCV 2024).
"""

import torch
from torch import Tensor

from sightline.ops.checks import accumulate_dtype
from sightline.ops.soft.newton import newton_inverse, step_size

RIDGE = 0.01  # plain SOFT inverts A + RIDGE I
# Newton's first step times ||A||_1^2, by `normalized`. At exactly 2, the paper's, the iteration loses the
# leading eigenvector of a matrix with equal row sums (one landmark, two, or identical ones: a flat image).
STEP = {False: 0.9 * 2, True: 2 - 2e-4}


def soft_attention(
    q: Tensor, v: Tensor, landmarks: Tensor, normalized: bool, iterations: int, key_mask: Tensor | None
) -> Tensor:
    """q (B, N, H, D), v (B, N, H, E), landmarks (B, m, H, D) -> (B, N, H, E)."""
    wide = accumulate_dtype(q.dtype)
    q_, v_, l_ = (t.to(wide).transpose(1, 2) for t in (q, v, landmarks))  # B H N D
    weights = gaussian(q_, l_)  # B H N m
    core = landmark_inverse(l_, normalized, iterations)  # B H m m
    keys = weights
    if key_mask is not None:
        keys, v_ = (t.masked_fill(~key_mask[:, None, :, None], 0.0) for t in (weights, v_))
    return (weights @ (core @ (keys.transpose(-1, -2) @ v_))).transpose(1, 2).to(q.dtype)


def gaussian(a: Tensor, b: Tensor) -> Tensor:
    """exp(-||a_i - b_j||^2 / 2) for (..., n, d) and (..., m, d); a distance never goes below zero."""
    square = a.square().sum(-1, keepdim=True) + b.square().sum(-1, keepdim=True).transpose(-1, -2)
    return torch.exp(-0.5 * (square - 2 * a @ b.transpose(-1, -2)).clamp(min=0))


def landmark_inverse(landmarks: Tensor, normalized: bool, iterations: int) -> Tensor:
    """A^+ of the landmarks' Gaussian matrix (SOFT), or D^-1/2 A^+ D^-1/2, D the row sums of A (SOFT++)."""
    eye = torch.eye(landmarks.shape[-2], dtype=landmarks.dtype, device=landmarks.device)
    matrix = torch.where(eye.bool(), 1.0, gaussian(landmarks, landmarks))  # the diagonal is exactly one
    step = step_size(matrix, STEP[normalized])
    if not normalized:
        return newton_inverse(matrix + RIDGE * eye, step, iterations)
    root = matrix.sum(-1, keepdim=True).rsqrt()  # m >= 1 and a unit diagonal keep the row sums above one
    return root * newton_inverse(matrix, step, iterations) * root.transpose(-1, -2)
