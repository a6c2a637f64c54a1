"""Inputs of the SOFT kernels; `sightline`'s other kernels share how they are compared (`tests/ops/cases.py`)."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from sightline.ops import soft_attention
from sightline.ops.common.launching import forget
from sightline.ops.soft import launch

from ..cases import DEVICE, tokens

both = pytest.mark.parametrize("normalized", [False, True], ids=["soft", "soft++"])


def inputs(
    batch: int, count: int, m: int, heads: int, dim: int, dtype: torch.dtype = torch.float32, layout: str = "packed"
) -> list[Tensor]:
    """q, v and landmarks, on memory that is NaN around them."""
    q, v, _ = tokens(batch, count, heads, dim, dtype, layout)
    marks = tokens(batch, m, heads, dim, dtype, layout)[0]
    for t in (q, marks):  # |q - l|^2 is about 8: weights of 0.02, whose products float16 still holds
        t.data.mul_(2 / dim**0.5)
    return [q, v, marks]


def soft(*x: Tensor, **options: Any) -> Tensor:
    return soft_attention(*x, **{"normalized": True, **options})


@pytest.fixture(params=["whole", "cut"])
def cut(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Both ways through the kernels: an image in one program, or cut into chunks as if it were long."""
    if request.param == "cut":
        monkeypatch.setattr(launch, "SHORT", 0)
        monkeypatch.setattr(launch, "CHUNK", 64)
    _forget()
    yield request.param
    _forget()


def _forget() -> None:
    forget()


@pytest.fixture(autouse=True)
def poison() -> Iterator[None]:
    """Fresh memory is NaN, so that a cell that no kernel writes shows."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(before)


__all__ = ["DEVICE", "both", "cut", "inputs", "poison", "soft"]
