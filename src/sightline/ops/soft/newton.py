"""Newton-Raphson inverse of a symmetric matrix, with the gradient of the inverse taken once.

Softmax-free Linear Transformers (IJCV 2024): X_0 = a A, X <- 2 X - X A X. The step size belongs to each
matrix, so an image's result does not depend on the rest of the batch.

Every step doubles the rounding error of X outside the range of A: after k steps that is 2^k times the error of X_0.
`steps_in` therefore ends the iteration where this has grown to 64 times the size of X_0. Up to there X is a smooth
pseudo-inverse, eigenvalue by eigenvalue f(t) = (1 - (1 - a t^2)^(2^k)) / t: 1 / t for eigenvalues t well above
||A||_1 2^(-k / 2), zero for those well below, finite for every symmetric A.
"""

import torch
from torch import Tensor

from sightline.ops.common.operator import Context

RIDGE = 0.01  # plain SOFT inverts A + RIDGE I
# Newton's first step times ||A||_1^2, by `normalized`. At exactly 2, the paper's, the iteration loses the
# leading eigenvector of a matrix with equal row sums (one landmark, two, or identical ones: a flat image).
STEP = {False: 0.9 * 2, True: 2 - 2e-4}


def steps_in(iterations: int, dtype: torch.dtype) -> int:
    """How many of the requested steps are taken: at most 30 in float32, 59 in float64."""
    return min(iterations, 59 if dtype == torch.float64 else 30)


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
    def setup_context(ctx: Context, inputs: tuple, output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor, None, None]:
        (inverse,) = ctx.saved_tensors
        transposed = inverse.transpose(-1, -2)
        return -transposed @ grad @ transposed, None, None


def newton_inverse(matrix: Tensor, step: Tensor, iterations: int = 20) -> Tensor:
    """The (pseudo-)inverse of `matrix` (..., m, m) by `iterations` Newton-Raphson steps from `step * matrix`.

    `step` (..., 1, 1) is a constant: no gradient flows through it. No more steps are taken than `steps_in` allows.
    """
    return _NewtonInverse.apply(matrix, step.detach(), steps_in(iterations, matrix.dtype))


def step_size(matrix: Tensor, factor: float) -> Tensor:
    """factor / ||A||_1^2 of each matrix on its own, (..., 1, 1)."""
    return factor / matrix.detach().abs().sum(-1).amax(-1)[..., None, None].square()


def convergence(matrix: Tensor, inverse: Tensor) -> Tensor:
    """||A X A - A|| / ||A|| in the Frobenius norm, one number per matrix."""
    error = matrix @ inverse @ matrix - matrix
    return torch.linalg.matrix_norm(error) / torch.linalg.matrix_norm(matrix)
