"""Which implementation of an operator runs: decided here and nowhere else.

Every operator has a `torch` implementation, the readable reference, which runs on any device. Some have a `triton` one
besides. `auto` takes the Triton kernel where there is one that takes the tensors and these are on a CUDA device, else
the reference. The environment variable `SIGHTLINE_BACKEND` replaces `auto` for the operators that have a kernel; an
explicit `backend=` argument wins over both. With `TRITON_INTERPRET=1`, Triton's interpreter runs the kernels on a CPU,
slowly.
"""

import os
from importlib.util import find_spec

import torch

BACKENDS = ("auto", "triton", "torch")
VARIABLE = "SIGHTLINE_BACKEND"

# Operators that have a Triton implementation.
TRITON_OPERATORS = frozenset({"headwise_conv", "inline_attention", "linear_attention", "soft_attention"})


def choose(operator: str, device: torch.device, backend: str | None = None, obstacle: str | None = None) -> str:
    """The implementation to run for `operator` on `device`: "torch" or "triton".

    `obstacle` says why the kernel cannot take the tensors; `auto` then takes the reference.

    Example: `choose("inline_attention", torch.device("cpu"))` gives "torch".
    """
    source = "backend" if backend is not None else VARIABLE
    wanted = backend if backend is not None else os.environ.get(VARIABLE, "auto")
    if wanted not in BACKENDS:
        raise ValueError(f"{operator}: {source}={wanted!r} is not a backend; use one of {', '.join(BACKENDS)}")
    if wanted == "torch" or (backend is None and operator not in TRITON_OPERATORS):
        return "torch"
    obstacle = _no_kernel(operator) or (_no_device(device) if wanted == "triton" else None) or obstacle
    if wanted == "auto":
        return "torch" if obstacle or device.type != "cuda" else "triton"
    if obstacle:
        raise ValueError(f"{operator}: {source}='triton' but {obstacle}; use 'auto' or 'torch'")
    return wanted


def _no_kernel(operator: str) -> str | None:
    if operator not in TRITON_OPERATORS:
        return "there is no Triton kernel for it"
    return None if _INSTALLED else "Triton is not installed"


def _no_device(device: torch.device) -> str | None:
    interpreted = os.environ.get("TRITON_INTERPRET") == "1" and device.type == "cpu"
    return None if device.type == "cuda" or interpreted else f"the tensors are on {device}, not on a CUDA device"


_INSTALLED = find_spec("triton") is not None
