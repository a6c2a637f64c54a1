"""Which implementation of an operator runs: decided here and nowhere else.

Every operator has a `torch` implementation, the readable reference, which runs on any device. Some have a
`triton` one besides. `auto` takes the Triton kernel where there is one and the tensors are on a CUDA device,
else the reference. The environment variable `SIGHTLINE_BACKEND` replaces `auto`; an explicit `backend=`
argument wins over both.
"""

import os

import torch

BACKENDS = ("auto", "triton", "torch")
VARIABLE = "SIGHTLINE_BACKEND"

# Operators that have a Triton implementation.
TRITON_OPERATORS: frozenset[str] = frozenset()


def choose(operator: str, device: torch.device, backend: str | None = None) -> str:
    """The implementation to run for `operator` on `device`: "torch" or "triton".

    Example: `choose("inline_attention", torch.device("cpu"))` gives "torch".
    """
    source = "backend" if backend is not None else VARIABLE
    wanted = backend if backend is not None else os.environ.get(VARIABLE, "auto")
    if wanted not in BACKENDS:
        raise ValueError(f"{operator}: {source}={wanted!r} is not a backend; use one of {', '.join(BACKENDS)}")
    has_kernel = operator in TRITON_OPERATORS
    if wanted == "triton" and not has_kernel:
        raise ValueError(f"{operator}: {source}='triton' but there is no Triton kernel for it; use 'auto' or 'torch'")
    if wanted == "auto":
        return "triton" if has_kernel and device.type == "cuda" else "torch"
    return wanted
