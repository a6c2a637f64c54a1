"""The tiles for GPUs with less shared memory than an H200 give the same results; every GPU can run them."""

import pytest
import torch

from sightline import backend
from sightline.ops.common.launching import forget
from sightline.ops.linear import plan

from .cases import TOLERANCE, compare, cut, inline, linear, tokens, weights
from .headwise_conv.test_headwise_conv import conv
from .headwise_conv.test_headwise_conv import inputs as conv_inputs
from .soft.cases import inputs as soft_inputs
from .soft.cases import soft

__all__ = ["cut"]
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
CASES = [(backend.SMALL, BF16, 128), (backend.SMALL, FP16, 128), (backend.SMALL, FP32, 64), (backend.MEDIUM, FP32, 128)]
each = pytest.mark.parametrize(("shared", "dtype", "dim"), CASES)


@pytest.fixture(autouse=True)
def _small_gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = request.getfixturevalue("shared")
    monkeypatch.setattr(backend, "shared_memory", lambda device: shared)


@each
@pytest.mark.parametrize("cut", ["cut"], indirect=True)
def test_inline(shared: int, dtype: torch.dtype, dim: int, cut: str) -> None:
    inputs = [*tokens(1, 27, 1, dim, dtype), weights(1, dim, dtype)]
    compare(inline, inputs, TOLERANCE[dtype], grid=(4, 6), prefix=3)


@each
@pytest.mark.parametrize("cut", ["whole", "cut"], indirect=True)
def test_linear(shared: int, dtype: torch.dtype, dim: int, cut: str) -> None:
    if (dtype, dim) != (FP32, 128):  # too wide for every GPU
        compare(linear, tokens(1, 50, 1, dim, dtype), TOLERANCE[dtype], phi="elu1")


@each
@pytest.mark.parametrize("landmarks", [9, 70])
def test_soft(shared: int, dtype: torch.dtype, dim: int, landmarks: int) -> None:
    forget()
    compare(soft, soft_inputs(1, 100, landmarks, 1, dim, dtype), TOLERANCE[dtype], iterations=3)
    forget()


@each
def test_conv(shared: int, dtype: torch.dtype, dim: int) -> None:
    forget()
    compare(conv, conv_inputs((4, 18), 7, heads=1, dim=dim, dtype=dtype), TOLERANCE[dtype], grid=(4, 18))
    forget()


@pytest.mark.parametrize("shared", [backend.SMALL])
def test_wide_tiles_are_smaller(shared: int) -> None:
    narrow, wide = (
        [plan.plan(2, dim, 196, (14, 14), BF16, False, size).queries.size for size in (backend.LARGE, shared)]
        for dim in (32, 128)
    )
    assert narrow[0] == narrow[1]
    assert wide[0] > wide[1]
