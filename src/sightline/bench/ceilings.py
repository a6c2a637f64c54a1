"""What the machine can do at best, measured in the run itself: memory by a copy, arithmetic by a matrix product."""

from dataclasses import asdict, dataclass

import torch

from sightline.bench.clock import Timing, Work, measure, measuring
from sightline.bench.precision import DTYPES, precision


@dataclass(frozen=True)
class Ceilings:
    """`copy` in bytes a second, read and written; `product` in floating-point operations a second."""

    copy: float
    product: float

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


# Bytes of the copied tensor, and the side of the square matrices.
SIZES = {"cuda": (2**30, 8192), "cpu": (2**27, 1024)}


def measure_ceilings(device: torch.device, dtype: str, budget_ms: float) -> Ceilings:
    """Copy a tensor far larger than any cache, multiply two square matrices."""
    nbytes, side = SIZES[device.type]
    with measuring(device), precision(dtype), torch.no_grad():
        source = torch.randn(nbytes // 2, device=device).to(torch.bfloat16)
        target = torch.empty_like(source)
        a, b = (torch.randn(side, side, device=device).to(DTYPES[dtype]) for _ in range(2))
        # A kernel that reads and writes: inside a CUDA graph, `copy_` would be left to the slower copy engine.
        works = {"copy": Work([lambda: torch.neg(source, out=target)]), "product": Work([lambda: a @ b])}
        outcomes = measure(works, device, budget_ms)
    seconds = {name: _seconds(outcome) for name, outcome in outcomes.items()}
    return Ceilings(2 * nbytes / seconds["copy"], 2 * side**3 / seconds["product"])


def _seconds(outcome: object) -> float:
    if not isinstance(outcome, Timing):
        raise ValueError(f"the ceilings of this machine cannot be measured: {outcome}")
    ms = outcome.call_ms if outcome.graph_ms is None else outcome.graph_ms
    assert ms is not None
    return ms / 1e3
