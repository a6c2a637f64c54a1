"""Check a candidate before it is timed: outputs and gradients against the float32 reference."""

from collections.abc import Iterable

import torch
from torch import Tensor

from sightline.bench.operators import (
    MOVE,
    OPERATORS,
    Function,
    OpCandidate,
    Operands,
    core_of,
    operator_of,
    place_of,
    with_gradients,
)
from sightline.bench.precision import DTYPES, TOLERANCES, precision
from sightline.util.errors import RunError

CHECKED_QUERIES = 8


class MismatchError(RunError):
    """A candidate that is not timed, because it does not match the reference."""


def row_error(got: Tensor, want: Tensor) -> float:
    """The largest error of a row, relative to the norm of that row of `want`; NaN if anything is NaN.

    A row is the last axis, so that small rows (a class token among 16,384 others) count as much as large ones.
    """
    got, want = got.double(), want.double()
    error, size = (got - want).norm(dim=-1), want.norm(dim=-1)
    smallest = size.max() * 1e-6  # rows of zeros have no direction
    return float((error / size.clamp(min=float(smallest.clamp(min=1e-30)))).max()) if error.numel() else 0.0


def check_operator(candidate: OpCandidate, function: Function, x: Operands, mode: str, dtype: str) -> float:
    """The largest error of `function` on the first and the last image, at the full shape of the operands.

    Raises:
        MismatchError: the error exceeds `TOLERANCES`.
    """
    if candidate.name == MOVE:
        return 0.0
    indices = sorted({0, x.case.batch - 1})
    small = x.images(indices)
    definition = operator_of(OpCandidate(candidate.name, candidate.spec, "torch"), x.case, x.q.device, DTYPES[dtype])
    worst = 0.0
    with precision("float32"):
        wanted = list(_results(definition, small, mode))
        check_definition(candidate, small, wanted[0][1], DTYPES[dtype])
    with precision(dtype):
        results = _results(function, x, mode)
    for (name, got), (_, want) in zip(results, wanted, strict=True):
        error = row_error(got[indices].flatten(2), want.flatten(2))
        if not error <= TOLERANCES[dtype]:
            raise MismatchError(
                f"{candidate.name} on {x.case.name}, {dtype}: {name} is {error:.2g} from the float32 reference "
                f"(limit {TOLERANCES[dtype]:g}); not timed"
            )
        worst = max(worst, error)
    return worst


def check_definition(candidate: OpCandidate, x: Operands, output: Tensor, weights: torch.dtype) -> None:
    """Compare the float32 output of a mechanism that is a module with its rows of weights, for a few queries.

    Operators need no such check: their reference is the definition, and tests compare it with the full matrix.
    """
    if candidate.spec is None or candidate.spec.name in OPERATORS:
        return
    queries = torch.linspace(0, x.case.tokens - 1, CHECKED_QUERIES, device=x.q.device).long().unique()
    core = core_of(candidate.spec, x.case, x.q.device, x.q.dtype, weights)
    with torch.no_grad():
        want = core.by_rows(x.q, x.k, x.v, queries, place_of(x))
    error = row_error(output[:, queries].flatten(2), want.flatten(2))
    if not error <= TOLERANCES["float32"]:
        raise MismatchError(
            f"{candidate.name} on {x.case.name}: the output is {error:.2g} from its weights times the values "
            f"(limit {TOLERANCES['float32']:g}); not timed"
        )


def _results(function: Function, x: Operands, mode: str) -> Iterable[tuple[str, Tensor]]:
    """The output, and the gradients if the mode has a backward, by name."""
    if mode == "forward":
        with torch.no_grad():
            return [("output", function(x))]
    out, *grads = with_gradients(function)(x)
    named = zip(x.leaves, grads, strict=True)
    return [("output", out), *((f"gradient of {name}", grad) for name, grad in named if grad is not None)]
