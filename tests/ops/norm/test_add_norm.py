"""The gradient of a sum and its layer norm by one kernel, against autograd in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sightline.ops.gelu.operator import sharers
from sightline.ops.norm import add_norm, normed_sum
from sightline.ops.norm import operator as norm_operator

from ..cases import DEVICE

EPS = 1e-3  # with one channel the variance is 0, so rounding errors are divided by the root of this
DTYPES = [torch.bfloat16, torch.float16, torch.float32]
SHAPES = [
    (2, 5, 24),
    (3, 7, 64),
    (1, 1, 1),
    (2, 3, 1030),
]  # channels that are and are not a power of two, and wide ones


def inputs(shape: tuple[int, int, int], dtype: torch.dtype, x: torch.dtype = torch.float32) -> list[Tensor]:
    """x, the update and the bias in it, weight and shift."""
    made = [torch.randn(shape).to(x), torch.randn(shape).to(dtype), torch.randn(shape[2]).to(dtype)]
    made += [torch.randn(shape[2]) + 1, torch.randn(shape[2])]
    return [t.to(DEVICE).requires_grad_() for t in made]


def loss(outputs: tuple[Tensor, ...], view: str) -> Tensor:
    """Different weights for every element of the outputs; the mean token of the view, as InLine attention takes it."""
    generator = torch.Generator().manual_seed(1)
    total = torch.zeros((), dtype=torch.float64, device=DEVICE)
    for i, out in enumerate(outputs):
        out = out.mean(1) if i == 2 else out
        total = total + (out.double() * torch.randn(out.shape, generator=generator).to(DEVICE)).sum()
    return total


def gradients(
    shape: tuple[int, int, int],
    update: torch.dtype,
    out: torch.dtype,
    view: str,
    bias: bool,
    x: torch.dtype = torch.float32,
) -> tuple[list[Tensor | None], list[Tensor | None]]:
    """Those of the kernel, and those of autograd in float64; "alone" is the norm without the sum."""
    given = inputs(shape, update, x)
    tokens, branch, last, weight, shift = given
    whole = branch + last.detach() if bias else branch
    given_bias = last if bias else None
    if view == "alone":
        made = normed_sum(tokens, whole, weight, shift, EPS, out, bias=given_bias)
    else:
        made = add_norm(tokens, whole, weight, shift, EPS, out, bias=given_bias, view=view)
    exact = [t.detach().double().requires_grad_() for t in given]
    total = exact[0] + (exact[1] + exact[2] if bias else exact[1])
    y = F.layer_norm(total, shape[2:], exact[3], exact[4], EPS)
    expected = {"": (total, y), "norm": (total, y, y), "sum": (total, y, total), "alone": (y, y)}[view]
    if update == out == torch.float32:
        for got, want in zip(made, expected, strict=True):
            torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-4)
    loss(made, view).backward()
    loss(expected, view).backward()
    return [t.grad for t in given], [t.grad for t in exact]


@pytest.mark.parametrize("view", ["", "norm", "sum", "alone"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_in_float32(shape: tuple[int, int, int], bias: bool, view: str) -> None:
    found, expected = gradients(shape, torch.float32, torch.float32, view, bias)
    for got, want in zip(found, expected, strict=True):
        if want is None:
            assert got is None
        else:
            scale = want.abs().max().item()
            torch.testing.assert_close(got.double(), want, rtol=0, atol=1e-5 * max(scale, 1))


@pytest.mark.parametrize("view", ["norm", "alone"])
@pytest.mark.parametrize("x", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES[:2])
def test_gradients_in_half_precision(dtype: torch.dtype, x: torch.dtype, view: str) -> None:
    """Each in the dtype of what it belongs to, and no further off than half precision of y and of its gradient is."""
    found, expected = gradients((2, 9, 48), dtype, dtype, view, True, x)
    kinds = [x, dtype, dtype, torch.float32, torch.float32]
    precision = max(torch.finfo(kind).eps for kind in (dtype, x))
    for got, want, kind in zip(found, expected, kinds, strict=True):
        assert got.dtype == kind
        error = (got.double() - want).norm() / want.norm()
        assert error < precision


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_norm_is_as_precise_as_its_weight(dtype: torch.dtype) -> None:
    """As under autocast; a layer that reads it gets its own dtype."""
    x, update, _, weight, shift = inputs((2, 5, 24), dtype, dtype)
    for kind in {torch.float32, dtype}:
        y, read = normed_sum(x, update, weight.to(kind), shift.to(kind), EPS, dtype)
        assert (y.dtype, read.dtype) == (kind, dtype)
        torch.testing.assert_close(read, y.to(dtype))


@pytest.mark.parametrize("channels", [5, 300])
@pytest.mark.parametrize("view", ["", "norm", "alone"])
def test_sums_for_a_later_bias(view: str, channels: int) -> None:
    """Rows for it, of fewer and of more channels than the norm has: their gradient is summed, and no other changes."""
    given = inputs((2, 5, 24), torch.float32)
    tokens, update, bias, weight, shift = given
    later = torch.randn(channels, device=DEVICE).requires_grad_()

    def outputs(later: Tensor | None) -> tuple[Tensor, ...]:
        args = (tokens, update + bias.detach(), weight, shift, EPS, torch.float32)
        if view == "alone":
            return normed_sum(*args, bias=bias, later=later)
        return add_norm(*args, bias=bias, view=view, later=later)

    expected = torch.autograd.grad(loss(outputs(None), view), given)
    *made, rows = outputs(later)
    factors = torch.randn(sharers(channels), channels, device=DEVICE)
    total = loss(tuple(made), view) + (rows * factors).double().sum()
    *found, summed = torch.autograd.grad(total, [*given, later])
    torch.testing.assert_close(summed, factors.sum(0), rtol=1e-5, atol=1e-4)
    assert all(torch.equal(got, want) for got, want in zip(found, expected, strict=True))


def test_rows_are_split_among_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several steps for each of several programs, the last of which has rows that do not exist."""
    monkeypatch.setattr(norm_operator, "PROGRAMS", 3)
    monkeypatch.setattr(norm_operator, "TILE", 64)
    monkeypatch.setattr(norm_operator, "SUM_TILE", {"PARTS": 2, "BLOCK": 16})
    found, expected = gradients((5, 7, 24), torch.float32, torch.float32, "norm", True)
    for got, want in zip(found, expected, strict=True):
        torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-4)


def test_gradients_that_are_not_contiguous() -> None:
    x, update, _, weight, shift = inputs((2, 6, 16), torch.float32)
    factors = torch.randn(2, 16, 6, device=DEVICE)

    def loss(total: Tensor, y: Tensor) -> Tensor:
        return (total.transpose(1, 2) * factors).sum() + (y.transpose(1, 2) * factors).sum()

    given = (x, update, weight, shift)
    found = torch.autograd.grad(loss(*add_norm(*given, EPS, torch.float32)), given)
    expected = torch.autograd.grad(loss(x + update, F.layer_norm(x + update, (16,), weight, shift, EPS)), given)
    for got, want in zip(found, expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
