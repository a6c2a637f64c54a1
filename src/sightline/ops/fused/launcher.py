"""Starts Triton kernels: with little work on the host once a call is known, and compiled ahead where it is not.

Triton looks at every argument of every call, which takes longer than a small kernel runs. Here the compiled kernel is
remembered by what it depends on. `compiling` turns launches into compilations in several threads.
"""

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from triton.runtime._async_compile import AsyncCompileMode

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
REMEMBERED = 8192  # calls at most; then all are forgotten
THREADS = 16

_kernels: dict[tuple, tuple[Any, tuple]] = {}
_local = threading.local()  # `ahead`: kernels under way while this thread is `compiling`; others go on launching


def run(kernel: Any, grid: tuple[int, ...], args: tuple, constants: dict[str, Any]) -> None:
    """Launch `kernel` on a grid of programs: `args` in the order of its signature, then its `constants`."""
    ahead = getattr(_local, "ahead", None)
    if ahead is not None:
        ahead.append(kernel.warmup(*args, grid=grid, **constants))
        return
    if INTERPRETED:
        kernel[grid](*args, **constants)
        return
    key = (id(kernel), torch.cuda.current_device(), *map(_trait, args), *constants.values())
    known = _kernels.get(key)
    if known is None:
        if len(_kernels) >= REMEMBERED:
            _kernels.clear()
        compiled = kernel[grid](*args, **constants)
        _kernels[key] = compiled, tuple(constants[name] for name in kernel.arg_names[len(args) :])
        return
    compiled, rest = known
    compiled[(*grid, 1, 1)[:3]](*args, *rest)


def _trait(argument: Any) -> Any:
    """What a compiled kernel depends on: of a tensor its type and alignment, of a number at most the number."""
    return (argument.dtype, argument.data_ptr() % 16) if isinstance(argument, Tensor) else argument


@contextmanager
def compiling() -> Iterator[None]:
    """Inside, kernels are compiled and not launched; at the end all are ready to be launched."""
    _local.ahead = []
    device = torch.cuda.current_device()
    try:
        with ThreadPoolExecutor(THREADS) as pool:
            with AsyncCompileMode(pool):
                yield
            list(pool.map(lambda kernel: load(kernel, device), _local.ahead))
    finally:
        _local.ahead = None


def load(kernel: Any, device: int) -> None:
    """Bring a compiled kernel onto the device; asking for its launcher does that. New threads start on device 0."""
    with torch.cuda.device(device):
        (kernel.result() if hasattr(kernel, "result") else kernel)[(1, 1, 1)]
