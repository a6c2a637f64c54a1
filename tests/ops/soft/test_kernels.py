"""The SOFT kernels against the reference: output and every gradient, per dtype, at odd sizes, on poisoned memory."""

import pytest
import torch

from sightline.ops import soft_attention

from ..cases import DTYPES, GPU, TOLERANCE, assert_close, compare, on_gpu
from .cases import DEVICE, both, cut, inputs, poison, soft

__all__ = ["cut", "poison"]

SMALL = [(1, 1), (50, 9)]
LARGE = [(49, 49), (63, 64), (196, 49), (197, 33), (784, 49), (1000, 49), (1601, 17), (3136, 49), (4097, 64)]
SIZES = [*SMALL, *LARGE] if GPU else SMALL
HEADS = [(3, 24), (2, 60), (2, 64), (5, 8), (1, 128), (2, 80)] if GPU else [(2, 24)]
FLOAT = TOLERANCE[torch.float32]
MANY = [(130, torch.bfloat16), (1024, torch.float32), (1024, torch.bfloat16)] if GPU else []
DIM = 32 if GPU else 16  # on a GPU one head dim for most, whose kernels are compiled once


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("count", "m"), SIZES)
def test_matches_reference(count: int, m: int, dtype: torch.dtype) -> None:
    compare(soft, inputs(2, count, m, 3 if GPU else 1, 32, dtype), TOLERANCE[dtype])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("heads", "dim"), HEADS)
def test_head_dims(heads: int, dim: int, dtype: torch.dtype) -> None:
    for count, m in [(197, 49), (1601, 33)] if GPU else SMALL:
        compare(soft, inputs(2, count, m, heads, dim, dtype), TOLERANCE[dtype])


@pytest.mark.slow
@both
def test_both_kinds_and_a_scale(normalized: bool, cut: str) -> None:
    compare(soft, inputs(2, 70, 9, 1, DIM), FLOAT, normalized=normalized, scale=0.7)


@pytest.mark.slow
@both
@pytest.mark.parametrize("m", [70, 130, *([200, 1024, 1100] if GPU else [])])
def test_more_landmarks_than_a_program_holds(m: int, normalized: bool) -> None:
    for iterations in (1, 4, 20) if GPU else (1, 4) if m < 128 else (2,):
        compare(soft, inputs(1, 100, m, 1, DIM), FLOAT, normalized=normalized, iterations=iterations)


@on_gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("m", [16, 32, 128, 256, 1024])
def test_any_number_of_landmarks(m: int, dtype: torch.dtype) -> None:
    compare(soft, inputs(1, 1500, m, 2, DIM, dtype), TOLERANCE[dtype])


@pytest.mark.parametrize("iterations", [1, 3, 24, 30, 60])
def test_any_number_of_steps(iterations: int) -> None:
    compare(soft, inputs(1, 40, 33, 1, 32), FLOAT, iterations=iterations)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["heads_first", "spread"])
def test_any_strides(layout: str, cut: str) -> None:
    compare(soft, inputs(2, 20, 9, 2, DIM, layout=layout), FLOAT)


@pytest.mark.slow
@both
def test_key_mask_hides_anything(normalized: bool, cut: str) -> None:
    q, v, marks = inputs(3, 30, 9, 1, DIM)
    mask = torch.rand(3, 30, device=DEVICE) > 0.3
    mask[2] = False  # an image without keys
    v.data.masked_fill_(~mask[:, :, None, None], torch.nan)
    compare(soft, [q, v, marks], FLOAT, normalized=normalized, key_mask=mask)


@pytest.mark.parametrize("kind", ["expanded", "strided"])
def test_key_mask_of_any_strides(kind: str) -> None:
    mask = torch.rand(2, 40, device=DEVICE) > 0.3
    mask = mask[:1, :20].expand(2, -1) if kind == "expanded" else mask[:, ::2]
    compare(soft, inputs(2, 20, 9, 1, DIM), FLOAT, key_mask=mask)


@pytest.mark.usefixtures("overflow_checks")
@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed_images(dtype: torch.dtype, cut: str) -> None:
    sizes, counts = (70, 1, 0, 20), (9, 1, 2, 13)
    ends, landmark_ends = (torch.tensor([0, *s], device=DEVICE).cumsum(0) for s in (sizes, counts))
    x = inputs(1, sum(sizes), sum(counts), 2, DIM, dtype)
    compare(soft, x, TOLERANCE[dtype], cu_seqlens=ends, cu_landmarks=landmark_ends)


@pytest.mark.slow
@both
def test_masks_and_packs_with_more_landmarks_than_a_program_holds(normalized: bool) -> None:
    mask = torch.rand(2, 30, device=DEVICE) > 0.3
    mask[1] = False
    steps = 20 if GPU else 2
    compare(soft, inputs(2, 30, 70, 1, DIM), FLOAT, normalized=normalized, key_mask=mask, iterations=steps)
    sizes, counts = (70, 1, 20), (9, 70, 64)
    ends, landmark_ends = (torch.tensor([0, *s], device=DEVICE).cumsum(0) for s in (sizes, counts))
    x = inputs(1, sum(sizes), sum(counts), 1, DIM)
    places = {"cu_seqlens": ends, "cu_landmarks": landmark_ends}
    compare(soft, x, FLOAT, normalized=normalized, iterations=steps, **places)


@pytest.mark.slow
@both
@pytest.mark.parametrize("iterations", [20, 60])
@pytest.mark.parametrize(
    ("m", "dtype"), [(40, torch.float32), (40, torch.bfloat16), (70, torch.float32), *MANY], ids=str
)
def test_identical_landmarks(m: int, dtype: torch.dtype, iterations: int, normalized: bool) -> None:
    """A flat image: the result of the pseudo-inverse, as the reference gives it, and finite gradients.

    SOFT inverts ones + 0.01 I, whose condition number is 100 m + 1; the inverse is made with 22 bits.
    """
    q, v, marks = inputs(1, 40, m, 1, 32, dtype)
    marks.data.copy_(marks.data[:, :1].expand_as(marks))
    out = soft(q, v, marks, normalized=normalized, iterations=iterations, backend="triton")
    steps = min(iterations, 30)
    want = soft(*(t.double() for t in (q, v, marks)), normalized=normalized, iterations=steps, backend="torch")
    tolerance = TOLERANCE[dtype] if normalized else max(TOLERANCE[dtype], (100 * m + 1) * 2**-22)
    assert_close("output", out, want, tolerance)
    assert all(g.isfinite().all() for g in torch.autograd.grad(out.float().square().sum(), (q, v, marks)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("m", "noise"), [(24, 1e-6), (24, 1e-3), (24, 1e-2), (70, 1e-2), *([(1000, 1e-3), (1000, 1e-2)] if GPU else [])]
)
def test_near_duplicate_landmarks(m: int, noise: float) -> None:
    q, v, marks = inputs(1, 40, m, 1, 32)
    marks.data[:, m // 2 :] = marks.data[:, : m // 2] + noise * torch.randn_like(marks.data[:, m // 2 :])
    for iterations, tolerance in ((20, 1e-4), (60, 2e-3)):
        out = soft(q, v, marks, iterations=iterations, backend="triton")
        want = soft(*(t.double() for t in (q, v, marks)), iterations=min(iterations, 30), backend="torch")
        assert_close(f"{iterations} steps", out, want, tolerance)
        assert all(g.isfinite().all() for g in torch.autograd.grad(out.square().sum(), (q, v, marks)))


def test_float16_does_not_overflow() -> None:
    count = 65536 if GPU else 2048
    q, v, marks = (t.detach() for t in inputs(1, count, 6, 1, 16, torch.float16))
    v = v + 30 * (1 - 2 * (torch.arange(count, device=DEVICE) % 2).half())[:, None, None]
    want = soft(q.double(), v.double(), marks.double(), backend="torch")
    assert_close("output", soft(q, v, marks, backend="triton"), want, TOLERANCE[torch.float16])


@pytest.mark.slow
@pytest.mark.parametrize("m", [9, 70])
def test_same_bits_twice_and_in_any_batch(m: int, cut: str) -> None:
    x = inputs(2, 70 if GPU or m < 64 else 20, m, 1, DIM)
    grad = torch.randn_like(x[0])

    def run(rows: slice) -> list[torch.Tensor]:
        few = [t.detach()[rows].requires_grad_() for t in x]
        out = soft(*few, iterations=2 if m < 64 else 1, backend="triton")
        return [out, *torch.autograd.grad(out, few, grad[rows])]

    whole, again, part = run(slice(None)), run(slice(None)), run(slice(1, 2))
    for first, second, few in zip(whole, again, part, strict=True):
        assert torch.equal(first, second)
        assert torch.equal(first[1:2], few)


@on_gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("count", [16384, 65536, 262144])
def test_long_sequences(count: int, dtype: torch.dtype) -> None:
    compare(soft, inputs(1, count, 49, 1, 32, dtype), TOLERANCE[dtype])


@on_gpu
def test_memory_does_not_hold_the_weights() -> None:
    q, v, marks = inputs(1, 65536, 49, 4, 32, torch.bfloat16)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = soft_attention(q, v, marks, normalized=True)
    torch.autograd.grad(out, (q, v, marks), out.detach())
    weights = 4 * 65536 * 49 * 2
    assert torch.cuda.max_memory_allocated() - before < weights + 4 * q.numel() * 2
