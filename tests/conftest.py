"""Settings of every test: a fixed seed, one torch thread for each worker of pytest-xdist, and without a GPU Triton's
interpreter, which must be chosen before the kernels are imported."""

import os
from collections.abc import Iterator
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch

INTERPRETED = not torch.cuda.is_available() and find_spec("triton") is not None
if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


def _speed_up_interpreter() -> None:
    """Run kernels four times faster than Triton's interpreter does by default.

    It patches its language at every call of a device function, where once per launch is enough, and checks every sum
    and product of integers for overflow, which `overflow_checks` turns on where a test asks for it.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    patch, everything = interpreter._patch_lang, SimpleNamespace(__globals__={"tl": tl, "core": tl.core})
    interpreter._patch_lang = lambda kernel: patch(everything)
    interpreter.InterpretedFunction.__call__ = lambda self, *args, **kwargs: self.rewrite()(*args, **kwargs)
    _set_overflow_checks(False)


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
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def overflow_checks() -> Iterator[None]:
    """Let Triton's interpreter check that no integer of a kernel overflows."""
    if INTERPRETED:
        _set_overflow_checks(True)
    yield
    if INTERPRETED:
        _set_overflow_checks(False)
