"""Convergence of the Newton iteration (SOFT's Fig. 5): ||A A_k A - A|| / ||A|| against k, and condition numbers."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sightline.analysis.capture import BlockCall
from sightline.layers.core import Core
from sightline.ops.soft.newton import convergence
from sightline.util.errors import InputError


@dataclass(frozen=True)
class Newton:
    """One block on one image: landmarks, errors (windows * H, k + 1) after 0 to k steps, condition numbers."""

    block: str
    landmarks: int
    errors: Tensor
    conditions: Tensor


@torch.no_grad()
def measure_newton(blocks: Sequence[BlockCall], iterations: int = 20) -> list[Newton]:
    """The iteration of every SOFT block on the matrix that it inverts, in float32 as the model runs it.

    Raises:
        InputError: there is no SOFT block.
    """
    found = []
    for block in blocks:
        for part in block.parts:
            if part.core.inverts:
                call = part.to(torch.float32)
                matrix, step = (t.flatten(0, 1) for t in call.core.newton_matrix(call.q, call.place))
                errors = newton_errors(matrix, step, iterations)
                found.append(Newton(block.name, matrix.shape[-1], errors.cpu(), condition_number(matrix).cpu()))
    if not found:
        raise InputError("this model has no SOFT blocks; choose one, such as --model soft_tiny, or --attention soft")
    return found


def has_newton(model: nn.Module) -> bool:
    """Whether a model has a block to measure."""
    return any(isinstance(module, Core) and module.inverts for module in model.modules())


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
