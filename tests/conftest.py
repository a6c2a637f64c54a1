"""Settings of every test: a fixed seed, one thread for each worker of pytest-xdist and the processes it starts, and
without a GPU Triton's interpreter, which must be chosen before the kernels are imported."""

import gc
import os
import sys

if "PYTEST_XDIST_WORKER" in os.environ:  # before NumPy and torch, which read it when they are imported
    os.environ["OMP_NUM_THREADS"] = "1"

from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from math import prod
from types import SimpleNamespace
from typing import Any

import pytest
import torch

INTERPRETED = not torch.cuda.is_available() and find_spec("triton") is not None
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
gc.set_threshold(50_000, 20, 50)  # with the default 700, 10, 10 a twentieth of the time goes to the garbage collector
os.fsync = lambda file: None  # no test cuts the power, and to wait for a disk takes time


def _speed_up_interpreter() -> None:
    """Run kernels five times faster than Triton's interpreter does by default.

    It patches its language at every call of a device function, where once per launch is enough, checks every sum and
    product of integers for overflow, which `overflow_checks` turns on where a test asks for it, and makes the same few
    types and shapes again for every result.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    patch, everything = interpreter._patch_lang, SimpleNamespace(__globals__={"tl": tl, "core": tl.core})
    interpreter._patch_lang = lambda kernel: patch(everything)
    interpreter.InterpretedFunction.__call__ = lambda self, *args, **kwargs: self.rewrite()(*args, **kwargs)
    find, known = interpreter._get_np_dtype, cache(interpreter._get_np_dtype)
    interpreter._get_np_dtype = lambda type: (find if type.scalar.is_ptr() else known)(type.scalar)
    tl.tensor.__init__ = _init_tensor
    tl.block_type.__init__ = _init_block_type(tl.block_type.__init__)
    _set_overflow_checks(False)


def _init_tensor(self: Any, handle: Any, type: Any) -> None:
    self.handle, self.type, self.dtype = handle, type, type.scalar
    self.shape, self.numel = _constants(type.shape if type.is_block() else ())


@cache
def _constants(shape: Any) -> tuple[Any, Any]:
    import triton.language as tl

    return tl.tuple(map(tl.constexpr, shape)), tl.constexpr(prod(shape))


def _init_block_type(init: Any) -> Any:
    made: dict[Any, dict[str, Any]] = {}

    def initialize(self: Any, element_ty: Any, shape: Any) -> None:
        key = (id(element_ty), *(getattr(side, "value", side) for side in shape))
        if key not in made:
            init(self, element_ty, shape)
            made[key] = vars(self)
        self.__dict__.update(made[key])

    return initialize


def _set_overflow_checks(on: bool) -> None:
    from triton.runtime.interpreter import interpreter_builder

    object.__setattr__(interpreter_builder.options, "sanitize_overflow", on)  # frozen


if INTERPRETED:
    _speed_up_interpreter()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests marked `gpu` without a GPU."""
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a GPU"))


@pytest.fixture(autouse=True)
def _fresh() -> None:
    """A fixed seed, and nothing compiled by earlier tests: after eight models of a process, torch compiles no more."""
    torch.manual_seed(0)
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()


@pytest.fixture
def overflow_checks() -> Iterator[None]:
    """Let Triton's interpreter check that no integer of a kernel overflows."""
    if INTERPRETED:
        _set_overflow_checks(True)
    yield
    if INTERPRETED:
        _set_overflow_checks(False)
