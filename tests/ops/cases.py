"""Cases for the kernels: on a GPU in full, on a CPU small, through Triton's interpreter.

A case is run by the kernels and, in float64, by the reference; output and every gradient are compared. Tensors lie in
memory that is filled with NaN around them, so that a read outside of them shows.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from sightline.ops import inline_attention, linear_attention
from sightline.ops.common.launching import forget
from sightline.ops.linear import plan

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
on_gpu = pytest.mark.gpu

# Relative error, in the norm, against float64.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 8e-3}
DTYPES = list(TOLERANCE)

Grid = tuple[int, int]


def with_dtypes(values: list[Any]) -> list[tuple[Any, torch.dtype]]:
    """Each value with a dtype: all pairs on a GPU; on a CPU each value in float32, and the first in every dtype."""
    return [(v, dtype) for v in values for dtype in DTYPES if GPU or dtype == torch.float32 or v == values[0]]


def tokens(
    batch: int, count: int, heads: int, dim: int, dtype: torch.dtype = torch.float32, layout: str = "packed"
) -> Any:
    """q, k and v as views: `packed` of one projection, `heads_first` of (B, H, N, D), `spread` of a larger buffer."""
    made = torch.randn(3, batch, count, heads, dim, device=DEVICE).to(dtype)
    if layout == "packed":
        buffer = torch.full((batch, count + 3, 3, heads, dim), torch.nan, device=DEVICE, dtype=dtype)[:, 2:-1]
        views = buffer.unbind(2)
    elif layout == "heads_first":
        buffer = torch.full((3, batch, heads, count + 2, dim), torch.nan, device=DEVICE, dtype=dtype)[:, :, :, 1:-1]
        views = buffer.transpose(2, 3).unbind(0)
    else:
        buffer = torch.full((3, batch, count, heads, 2 * dim + 1), torch.nan, device=DEVICE, dtype=dtype)
        views = buffer[..., 1::2].unbind(0)
    for view, values in zip(views, made, strict=True):
        view.copy_(values)
    return [view.requires_grad_() for view in (v.detach() for v in views)]


def weights(images: int, channels: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(images, channels, 3, 3, device=DEVICE).to(dtype).requires_grad_()


def compare(function: Callable[..., Tensor], inputs: list[Tensor], tolerance: float, **options: Any) -> None:
    """Kernels against the reference in float64 on the same numbers: output and the gradient of every input."""
    wide = [t.detach().double().requires_grad_() for t in inputs]
    want = function(*wide, backend="torch", **options)
    out = function(*inputs, backend="triton", **options)
    grad = torch.randn(want.shape, device=DEVICE)
    wanted = torch.autograd.grad(want, wide, grad.double(), materialize_grads=True)
    got = torch.autograd.grad(out, inputs, grad.to(out.dtype))
    assert out.shape == want.shape
    assert out.dtype == inputs[0].dtype
    assert_close("output", out, want, tolerance)
    for i, (g, w) in enumerate(zip(got, wanted, strict=True)):
        assert g.shape == w.shape
        assert_close(f"gradient {i}", g, w, tolerance, scale=grad.norm().item() * 1e-2)


def assert_close(what: str, got: Tensor, want: Tensor, tolerance: float, scale: float = 1e-6) -> None:
    """Equal up to rounding; a gradient that vanishes is measured against `scale`."""
    error = (got.double() - want).norm().item() / max(want.norm().item(), scale)
    assert error <= tolerance, f"{what}: relative error {error:.2e} above {tolerance:.0e}"  # false for NaN too


def inline(*inputs: Tensor, residual: bool = True, **options: Any) -> Tensor:
    """`inline_attention` with the weights of the residual as a fourth input."""
    if residual:
        *qkv, r = inputs
        return inline_attention(*qkv, residual=r, **options)
    return inline_attention(*inputs, **options)


def linear(*inputs: Tensor, **options: Any) -> Tensor:
    return linear_attention(*inputs, **options)


@pytest.fixture(params=["whole", "cut"])
def cut(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways through the kernels: an image in one program, or cut into chunks as if it were long."""
    if request.param == "cut":
        monkeypatch.setattr(plan, "SHORT", 0)
        monkeypatch.setattr(plan, "CHUNK", {True: 40, False: 40})
        monkeypatch.setattr(plan, "ROWS", 4)
        monkeypatch.setattr(plan, "LINE", 40)
        monkeypatch.setattr(plan, "PROGRAMS", 10**6)
    forget()
    yield request.param
    forget()
