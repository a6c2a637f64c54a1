"""Convergence of the Newton iteration (SOFT's Fig. 5): ||A A_k A - A|| / ||A|| against k, and condition numbers."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sightline.analysis.capture import BlockCall
from sightline.analysis.factors import landmarks_of
from sightline.layers.mechanisms.soft import SoftCore
from sightline.ops.soft.newton import RIDGE, STEP, convergence, step_size
from sightline.ops.soft.reference import gaussian


@dataclass(frozen=True)
class Newton:
    """Of one block and one image: landmarks, the error (H, k + 1) after 0 to k steps, condition numbers (H,)."""

    block: str
    landmarks: int
    errors: Tensor
    conditions: Tensor


@torch.no_grad()
def measure_newton(blocks: Sequence[BlockCall], iterations: int = 20) -> list[Newton]:
    """The iteration of every SOFT block on the matrix that it inverts, in float32 as the model runs it.

    Raises:
        ValueError: there is no SOFT block.
    """
    found = []
    for block in blocks:
        for part in block.parts:
            if isinstance(part.core, SoftCore):
                windows = range(part.call["q"].shape[0])
                landmarks = torch.cat([landmarks_of(part.core, part.call, window) for window in windows])
                matrix, step = inverted_matrix(landmarks.float(), part.core.normalized)
                errors = newton_errors(matrix, step, iterations)
                found.append(Newton(block.name, matrix.shape[-1], errors.cpu(), condition_number(matrix).cpu()))
    if not found:
        raise ValueError("this model has no SOFT blocks; choose one, such as --model soft_tiny, or --attention soft")
    return found


def inverted_matrix(landmarks: Tensor, normalized: bool) -> tuple[Tensor, Tensor]:
    """The matrix (H, m, m) that SOFT (`normalized` false) or SOFT++ inverts, and the size of the first step."""
    eye = torch.eye(landmarks.shape[-2], dtype=landmarks.dtype, device=landmarks.device)
    matrix = torch.where(eye.bool(), 1.0, gaussian(landmarks, landmarks))
    step = step_size(matrix, STEP[normalized])
    return (matrix if normalized else matrix + RIDGE * eye), step


def newton_errors(matrix: Tensor, step: Tensor, iterations: int) -> Tensor:
    """||A A_k A - A|| / ||A|| for k = 0 to `iterations`: (..., m, m) -> (..., iterations + 1)."""
    inverse = step * matrix
    errors = [convergence(matrix, inverse)]
    for _ in range(iterations):
        inverse = 2 * inverse - inverse @ matrix @ inverse
        errors.append(convergence(matrix, inverse))
    return torch.stack(errors, -1)


def condition_number(matrix: Tensor) -> Tensor:
    """The largest over the smallest eigenvalue, in float64; infinite where the smallest is not above rounding."""
    values = torch.linalg.eigvalsh(matrix.double()).abs()
    least, most = values.amin(-1), values.amax(-1)
    noise = most * matrix.shape[-1] * torch.finfo(torch.float64).eps
    return torch.where(least > noise, most / least, torch.inf)
