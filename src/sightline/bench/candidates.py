"""What is measured: a plan is a case in one mode and dtype with its candidates, operators or networks.

A candidate is checked against the float32 reference before it is timed.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any, Protocol
from unittest import mock

import torch
from torch import Tensor, nn

from sightline import backend
from sightline.bench.cases import ModelCase, OpCase
from sightline.bench.clock import Work
from sightline.util.errors import RunError

# `tf32` is float32 whose matrix products and convolutions may round to TF32.
DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "tf32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

# Largest error of a row of an output or gradient against the float32 reference, relative to the norm of the row. Half
# precision rounds the inputs of matrix products and the result; its unit roundoff is 2^-8 (bfloat16) or 2^-11
# (float16), and a few of them add up.
TOLERANCES: dict[str, float] = {"float32": 1e-4, "tf32": 5e-3, "float16": 4e-3, "bfloat16": 2e-2}


class MismatchError(RunError):
    """A candidate that is not timed, because it does not match the reference."""


class MissingError(RunError):
    """A candidate that is not timed, because its package is not installed."""


class Candidate(Protocol):
    """One way to do the work of a case."""

    @property
    def label(self) -> str:
        """Its name in tables, unique among the candidates of a plan."""

    @property
    def kind(self) -> str:
        """What it is: "op", "module" or "model"."""

    @property
    def compiled(self) -> bool:
        """Whether it runs through torch.compile."""

    @property
    def compile_mode(self) -> str:
        """The mode of torch.compile; empty for its default."""

    def prepare(self, plan: "Plan", device: torch.device) -> Work:
        """The calls to time, checked; raises MismatchError if it is wrong, and anything if it does not run."""

    def moved_bytes(self, plan: "Plan") -> int:
        """Bytes that a call must move through memory; 0 if unknown."""

    def flops(self, plan: "Plan") -> int:
        """Floating-point operations of the products of a call, two per multiply-add."""


@dataclass(frozen=True)
class Plan:
    """A case in one mode and dtype, with the candidates to time in turns; `plain` compares them by plain calls."""

    case: OpCase | ModelCase
    mode: str
    dtype: str
    candidates: tuple[Candidate, ...]
    plain: bool = False

    @property
    def batch(self) -> int:
        """Training uses a quarter of a model's inference batch, unless the case sets its own; latency is of one."""
        if self.mode == "latency":
            return 1
        if isinstance(self.case, OpCase) or self.mode == "forward":
            return self.case.batch
        return self.case.train_batch or max(1, self.case.batch // 4)

    @property
    def passes(self) -> int:
        """The work of a call in forward passes: a backward counts twice."""
        return 1 if self.mode in ("forward", "latency") else 3

    def __str__(self) -> str:
        compiled = " compiled" if all(candidate.compiled for candidate in self.candidates) else ""
        return f"{self.case.name} {self.mode}{compiled} {self.dtype}"


def compile_apart(what: Callable[..., Any], mode: str = "", fullgraph: bool = False) -> Callable[..., Any]:
    """`torch.compile` of a function or module with a code object of its own, where compiled code is kept.

    Candidates that share one, such as a model with two mechanisms, would check each other's guards on every call.
    With CUDA graphs ("reduce-overhead") every call begins a step, so no result may be used after the next call.
    """
    if isinstance(what, nn.Module):
        what.forward = MethodType(_copied(type(what).forward), what)
    else:
        what = _copied(what)
    compiled: Callable[..., Any] = torch.compile(what, fullgraph=fullgraph, dynamic=False, mode=mode or None)
    if not mode:
        return compiled

    def step(*args: object) -> object:
        torch.compiler.cudagraph_mark_step_begin()
        return compiled(*args)

    return step


def _copied(function: Callable[..., Any]) -> FunctionType:
    """The same function with another code object."""
    assert isinstance(function, FunctionType)
    code = function.__code__.replace()
    copied = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied


@contextmanager
def precision(dtype: str) -> Iterator[None]:
    """Run float32 matrix products and convolutions in TF32 for "tf32", in full float32 for all others."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    fast = dtype == "tf32"
    torch.set_float32_matmul_precision("high" if fast else "highest")
    torch.backends.cudnn.allow_tf32 = fast
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


@contextmanager
def reference() -> Iterator[None]:
    """Run in full float32 and without kernels, as the reference that candidates are compared with."""
    with precision("float32"), mock.patch.dict(os.environ, {backend.VARIABLE: "torch"}):
        yield


def check(what: str, got: Tensor, want: Tensor, limit: float) -> float:
    """The error of `got`.

    Raises:
        MismatchError: it exceeds the limit; `what` names the candidate, the case and the tensor.
    """
    error = row_error(got, want)
    if not error <= limit:
        raise MismatchError(f"{what} is {error:.2g} from the float32 reference (limit {limit:g}); not timed")
    return error


def row_error(got: Tensor, want: Tensor) -> float:
    """The largest error of a row, relative to the norm of that row of `want`; NaN if anything is NaN.

    A row is the last axis, so that small rows (a class token among 16,384 others) count as much as large ones.
    """
    got, want = got.double(), want.double()
    error, size = (got - want).norm(dim=-1), want.norm(dim=-1)
    smallest = size.max() * 1e-6  # rows of zeros have no direction
    return float((error / size.clamp(min=float(smallest.clamp(min=1e-30)))).max()) if error.numel() else 0.0
