"""The head-wise convolution: the kernels against torch's convolution in float64, and what is rejected."""

from typing import Any

import pytest
import torch
from torch import Tensor

from sightline.ops import headwise_conv
from sightline.ops.common.launching import forget
from sightline.ops.headwise_conv import launch

from ..cases import DEVICE, GPU, TOLERANCE, assert_close, compare, on_gpu, tokens, with_dtypes

SIZES = (3, 5, 7, 9)
GRIDS = [(7, 9), (1, 1), (5, 20), (3, 40), (14, 14), (28, 28), (56, 56), (70, 130)]
# All pairs on a GPU; in the slow interpreter every filter on one grid, and the other grids with a small one.
CASES = (
    [(grid, size) for grid in GRIDS for size in SIZES]
    if GPU
    else [((7, 9), size) for size in SIZES] + [((1, 1), 3), ((1, 1), 9), ((5, 20), 5), ((3, 40), 3)]
)
FLOAT = TOLERANCE[torch.float32]


def inputs(grid: tuple[int, int], size: int, heads: int = 2, dim: int = 16, dtype: Any = torch.float32) -> list[Tensor]:
    x, _, add = tokens(2, grid[0] * grid[1], heads, dim, dtype)
    weight = torch.randn(heads, 1, size, size, device=DEVICE).to(dtype).requires_grad_()
    return [x, weight, add]


def conv(x: Tensor, weight: Tensor, add: Tensor, grid: tuple[int, int], backend: str) -> Tensor:
    return headwise_conv(x, weight, grid, add=add, backend=backend)


@pytest.mark.slow
@pytest.mark.parametrize(("grid", "size"), CASES)
def test_matches_reference(grid: tuple[int, int], size: int) -> None:
    compare(conv, inputs(grid, size), FLOAT, grid=grid)


@pytest.mark.slow
@pytest.mark.parametrize(("dim", "dtype"), with_dtypes([24, 32, *([60, 64, 128] if GPU else [])]))
def test_types_and_head_dims(dim: int, dtype: torch.dtype) -> None:
    grid = (20, 70) if GPU else (4, 18)
    compare(conv, inputs(grid, 5, dim=dim, dtype=dtype), TOLERANCE[dtype], grid=grid)


@pytest.mark.usefixtures("overflow_checks")
@pytest.mark.slow
def test_pieces_of_a_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "ROWS", 4)
    monkeypatch.setattr(launch, "GRADIENT_ROWS", 4)
    forget()
    compare(conv, inputs((9, 34), 3, heads=1), FLOAT, grid=(9, 34))
    forget()


def test_weights_of_another_type_and_any_strides() -> None:
    x, weight, _ = inputs((4, 6), 3, dtype=torch.bfloat16)
    wide = weight.detach().float().mT
    got = headwise_conv(x, wide, (4, 6), backend="triton")
    want = headwise_conv(x.double(), weight.double().mT, (4, 6), backend="torch")
    assert got.dtype == torch.bfloat16
    assert_close("output", got, want, TOLERANCE[torch.bfloat16])


@pytest.mark.slow
def test_opcheck() -> None:
    x, weight, add = (t.detach().contiguous().requires_grad_() for t in inputs((3, 4), 3))
    torch.library.opcheck(torch.ops.sightline.headwise_conv.default, (x, weight, add, 3, 4, False, "fp32"))
    plain = [t.detach() for t in (x, add, weight)]
    torch.library.opcheck(torch.ops.sightline.headwise_conv_weight.default, (*plain, 3, 4, "fp32"))


def test_same_bits_in_any_batch() -> None:
    x, weight, add = (t.detach() for t in inputs((5, 20), 5))
    whole = headwise_conv(x, weight, (5, 20), add=add, backend="triton")
    assert torch.equal(whole[1:], headwise_conv(x[1:], weight, (5, 20), add=add[1:], backend="triton"))


@pytest.mark.parametrize(
    ("shape", "reason"),
    [((3, 1, 3, 3), r"weight.*\(3, 1, 3, 3\)"), ((2, 1, 4, 4), r"\b4\b"), ((2, 1, 3, 5), r"weight.*\(2, 1, 3, 5\)")],
)
def test_rejects(shape: tuple[int, ...], reason: str) -> None:
    with pytest.raises(ValueError, match=f"headwise_conv: .*{reason}"):
        headwise_conv(torch.randn(1, 12, 2, 16), torch.randn(shape), (3, 4))


def test_other_sizes_fall_back_on_the_reference() -> None:
    x, weight = torch.randn(1, 12, 2, 16, device=DEVICE), torch.randn(2, 1, 11, 11, device=DEVICE)
    with pytest.raises(ValueError, match=r"^headwise_conv: backend='triton'.* 11 "):
        headwise_conv(x, weight, (3, 4), backend="triton")
    assert headwise_conv(x, weight, (3, 4)).shape == x.shape


@on_gpu
def test_large_grid() -> None:
    x, weight, add = inputs((256, 256), 9, dim=32, dtype=torch.bfloat16)
    compare(conv, [x, weight, add], TOLERANCE[torch.bfloat16], grid=(256, 256))
