"""Newton-Raphson inverse of a symmetric matrix, with the gradient of the inverse taken once.

Softmax-free Linear Transformers (IJCV 2024): X_0 = a A, X <- 2 X - X A X. The step size belongs to each
matrix, so an image's result does not depend on its batch mates.
"""

from typing import Any

import torch
from torch import Tensor


class _NewtonInverse(torch.autograd.Function):
    """Forward iterates; backward uses d(A^-1) = -A^-1 dA A^-1, exact when A is not singular."""

    generate_vmap_rule = True

    @staticmethod
    def forward(matrix: Tensor, step: Tensor, iterations: int) -> Tensor:
        inverse = step * matrix
        for _ in range(iterations):
            inverse = 2 * inverse - inverse @ matrix @ inverse
        return inverse

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (inverse,) = ctx.saved_tensors
        transposed = inverse.transpose(-1, -2)
        return -transposed @ grad @ transposed, None, None


def newton_inverse(matrix: Tensor, step: Tensor, iterations: int = 20) -> Tensor:
    """The (pseudo-)inverse of `matrix` (..., m, m) by `iterations` Newton-Raphson steps from `step * matrix`.

    `step` (..., 1, 1) is a constant: no gradient flows through it.
    """
    return _NewtonInverse.apply(matrix, step.detach(), iterations)


def step_size(matrix: Tensor, factor: float) -> Tensor:
    """factor / ||A||_1^2 of each matrix on its own, (..., 1, 1)."""
    return factor / matrix.detach().abs().sum(-1).amax(-1)[..., None, None].square()


def convergence(matrix: Tensor, inverse: Tensor) -> Tensor:
    """||A X A - A|| / ||A|| in the Frobenius norm, one number a matrix."""
    error = matrix @ inverse @ matrix - matrix
    return torch.linalg.matrix_norm(error) / torch.linalg.matrix_norm(matrix)
