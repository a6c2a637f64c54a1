"""The gradients of GELU and of the bias before it by one kernel, against autograd in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sightline.ops.gelu import gelu_of_biased
from sightline.ops.gelu import operator as gelu_operator

from ..cases import DEVICE

TOLERANCE = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


@pytest.fixture(autouse=True)
def few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three that share the rows, for up to 256 channels."""
    monkeypatch.setattr(gelu_operator, "PROGRAMS", 6)


def gradients(x: Tensor, grad: Tensor, tanh: bool) -> tuple[Tensor, Tensor, Tensor]:
    """GELU, its gradient and the sum of that over the tokens."""
    x = x.detach().requires_grad_()
    parts = torch.zeros(gelu_operator.sharers(x.shape[-1]), x.shape[-1], device=x.device, requires_grad=True)
    out = gelu_of_biased(x, parts, tanh=tanh)
    out.backward(grad)
    assert x.grad is not None
    assert parts.grad is not None
    return out.detach(), x.grad, parts.grad.sum(0)


def exact(x: Tensor, grad: Tensor, tanh: bool) -> tuple[Tensor, Tensor, Tensor]:
    x = x.detach().double().requires_grad_()
    out = F.gelu(x, approximate="tanh" if tanh else "none")
    out.backward(grad.double())
    assert x.grad is not None
    return out.detach(), x.grad, x.grad.flatten(0, -2).sum(0)


def error(found: Tensor, expected: Tensor) -> float:
    return ((found.double() - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("tanh", [False, True])
@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("shape", [(2, 49, 64), (1, 1, 1), (3, 33, 200), (60, 129)])
def test_gradients(shape: tuple[int, ...], dtype: torch.dtype, tanh: bool) -> None:
    """Of rows and channels that do and do not fill their tiles, in more and in fewer tiles than programs."""
    x, grad = ((2 * torch.randn(shape)).to(DEVICE, dtype) for _ in range(2))
    for found, expected in zip(gradients(x, grad, tanh), exact(x, grad, tanh), strict=True):
        assert error(found, expected) < TOLERANCE[dtype]


@pytest.mark.parametrize("tanh", [False, True])
def test_far_from_zero(tanh: bool) -> None:
    """The slope is 0 or 1 there, and nothing overflows."""
    x = torch.tensor([[-1e4, -30.0, -6.0, 6.0, 30.0, 1e4]], device=DEVICE)
    _, found, _ = gradients(x, torch.ones_like(x), tanh)
    torch.testing.assert_close(found, torch.tensor([[0.0, 0, 0, 1, 1, 1]], device=DEVICE), rtol=0, atol=1e-6)


def test_any_strides() -> None:
    x, grad = (torch.randn(24, 5, 3, device=DEVICE).transpose(0, 2) for _ in range(2))
    for found, expected in zip(gradients(x, grad, False), exact(x, grad, False), strict=True):
        assert error(found, expected) < 1e-6


def test_same_bits_every_time() -> None:
    x, grad = (torch.randn(4, 50, 96, device=DEVICE) for _ in range(2))
    first = gradients(x, grad, False)
    assert all(torch.equal(one, other) for one, other in zip(first, gradients(x, grad, False), strict=True))
