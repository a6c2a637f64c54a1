"""The best the machine can do, measured in the same run: memory by a copy, arithmetic by a matrix product."""

from dataclasses import dataclass

import torch

from sightline.bench.clock import Timing, Work, measure, measuring
from sightline.bench.precision import DTYPES, precision
from sightline.util.errors import RunError


@dataclass(frozen=True)
class Ceilings:
    """`copy` in bytes per second, read and written; `product` in floating-point operations per second."""

    copy: float
    product: float


# Bytes of the copied tensor, and the side of the square matrices.
SIZES = {"cuda": (2**30, 8192), "cpu": (2**27, 1024)}


def measure_ceilings(device: torch.device, dtype: str, budget_ms: float) -> Ceilings:
    """Copy a tensor far larger than any cache, and multiply two square matrices."""
    nbytes, side = SIZES[device.type]
    with measuring(device), precision(dtype), torch.no_grad():
        source = torch.randn(nbytes // 2, device=device).to(torch.bfloat16)
        target = torch.empty_like(source)
        a, b = (torch.randn(side, side, device=device).to(DTYPES[dtype]) for _ in range(2))
        # A kernel that reads and writes: inside a CUDA graph, `copy_` would use the slower copy engine.
        works = {"copy": Work([lambda: torch.neg(source, out=target)]), "product": Work([lambda: a @ b])}
        outcomes = measure(works, device, budget_ms)
    seconds = {}
    for name, outcome in outcomes.items():
        if not isinstance(outcome, Timing) or outcome.ms is None:
            raise RunError(f"the {name} speed of this machine cannot be measured: {outcome}")
        seconds[name] = outcome.ms / 1e3
    return Ceilings(2 * nbytes / seconds["copy"], 2 * side**3 / seconds["product"])
