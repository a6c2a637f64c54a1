"""The kernels against the reference: output and every gradient, per dtype, at odd sizes, on poisoned memory."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from sightline.ops import inline_attention
from sightline.ops.common.launching import forget
from sightline.ops.linear import plan as planning

from ..cases import (
    DEVICE,
    DTYPES,
    GPU,
    TOLERANCE,
    assert_close,
    compare,
    cut,
    inline,
    linear,
    on_gpu,
    tokens,
    weights,
    with_dtypes,
)

__all__ = ["cut"]

PHIS = ["identity", "relu", "leaky_relu", "elu1", "exp"]
SMALL = [(27, (4, 6), 3), (1, (1, 1), 0)]
LARGE = [
    (49, (7, 7), 0),
    (63, (6, 10), 3),
    (196, (14, 14), 0),
    (197, (14, 14), 1),
    (1000, (20, 50), 0),
    (1601, (40, 40), 1),
    (4097, (64, 64), 1),
]
SIZES = [*SMALL, *LARGE] if GPU else SMALL
HEADS = [(3, 24), (4, 32), (3, 32), (2, 60), (2, 64), (5, 8), (1, 128), (2, 80)] if GPU else [(3, 24), (2, 32)]


@pytest.fixture(autouse=True)
def _poison() -> Iterator[None]:
    """Fresh memory is NaN, so that a cell that no kernel writes shows."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(before)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "dtype"), with_dtypes(SIZES))
@pytest.mark.parametrize(("heads", "dim"), HEADS)
def test_inline_with_residual(size: tuple[int, tuple[int, int], int], heads: int, dim: int, dtype: torch.dtype) -> None:
    count, grid, prefix = size
    inputs = [*tokens(2, count, heads, dim, dtype), weights(2, heads * dim, dtype)]
    compare(inline, inputs, TOLERANCE[dtype], grid=grid, prefix=prefix)


@pytest.mark.slow
@pytest.mark.parametrize("grid", [(1, 33), (19, 1), (3, 17)])
def test_grids_that_are_not_square(grid: tuple[int, int], cut: str) -> None:
    inputs = [*tokens(1, grid[0] * grid[1] + 2, 2, 16), weights(1, 32)]
    compare(inline, inputs, TOLERANCE[torch.float32], grid=grid, prefix=2)


@pytest.mark.slow
@pytest.mark.parametrize(("width", "dtype"), with_dtypes([63, 1, 2, 300, *([49, 196, 1000, 4097] if GPU else [])]))
@pytest.mark.parametrize(("heads", "dim"), [(3, 24), (2, 32), (2, 64)] if GPU else [(3, 24)])
def test_lines(width: int, heads: int, dim: int, dtype: torch.dtype, cut: str) -> None:
    inputs = [*tokens(2, width + 1, heads, dim, dtype), weights(2, heads * dim, dtype)]
    compare(inline, inputs, TOLERANCE[dtype], grid=(1, width), prefix=1)


@pytest.mark.slow
@pytest.mark.parametrize("prefix", [0, 17])
def test_masked_lines(prefix: int, cut: str) -> None:
    q, k, v = tokens(3, 50 + prefix, 2, 16)
    mask = torch.rand(3, 50 + prefix, device=DEVICE) > 0.3
    mask[2] = False
    for t, garbage in ((k, torch.nan), (v, torch.inf)):
        t.data.masked_fill_(~mask[:, :, None, None], garbage)
    options = {"grid": (1, 50), "prefix": prefix, "key_mask": mask}
    compare(inline, [q, k, v, weights(3, 32)], TOLERANCE[torch.float32], phi="elu1", **options)


@pytest.mark.slow
def test_packed_lines(cut: str) -> None:
    grids = [(1, 90), (0, 0), (1, 1), (0, 7), (1, 9)]
    ends = torch.tensor([0, *torch.tensor([h * w + 2 for h, w in grids]).cumsum(0)], device=DEVICE)
    inputs = [*tokens(1, int(ends[-1]), 2, 16), weights(len(grids), 32)]
    compare(inline, inputs, TOLERANCE[torch.float32], cu_seqlens=ends, grids=grids, prefix=2)


@pytest.mark.slow
@pytest.mark.parametrize("prefix", [1, 16, 17])
def test_prefix(prefix: int, cut: str) -> None:
    inputs = [*tokens(1, 12 + prefix, 2, 16), weights(1, 32)]
    compare(inline, inputs, TOLERANCE[torch.float32], grid=(3, 4), prefix=prefix)


def test_prefix_only() -> None:
    compare(inline, [*tokens(1, 2, 2, 16), weights(1, 32)], TOLERANCE[torch.float32], grid=(0, 0), prefix=2)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["heads_first", "spread"])
def test_any_strides(layout: str, cut: str) -> None:
    inputs = [*tokens(2, 20, 2, 16, layout=layout), weights(2, 32)]
    compare(inline, inputs, TOLERANCE[torch.float32], grid=(4, 5))


@pytest.mark.slow
def test_weights_of_any_strides() -> None:
    inputs = [*tokens(2, 12, 2, 16), weights(2, 32).detach().transpose(2, 3).requires_grad_()]
    compare(inline, inputs, TOLERANCE[torch.float32], grid=(3, 4))
    inputs[3] = torch.randn(2, 3, 3, 32, device=DEVICE).permute(0, 3, 1, 2).requires_grad_()
    compare(inline, inputs, TOLERANCE[torch.float32], grid=(3, 4))


@pytest.mark.slow
@pytest.mark.parametrize(("phi", "dtype"), with_dtypes(PHIS))
def test_inline_without_residual(phi: str, dtype: torch.dtype, cut: str) -> None:
    compare(inline, tokens(2, 50, 2, 16, dtype), TOLERANCE[dtype], residual=False, phi=phi)


@pytest.mark.slow
@pytest.mark.parametrize("phi", PHIS)
def test_feature_maps_with_residual(phi: str, cut: str) -> None:
    inputs = [*tokens(1, 20, 2, 16), weights(1, 32)]
    compare(inline, inputs, TOLERANCE[torch.float32], phi=phi, grid=(4, 5))


@pytest.mark.slow
@pytest.mark.parametrize(("phi", "dtype"), with_dtypes(["relu", "elu1", "exp"]))
def test_linear(phi: str, dtype: torch.dtype, cut: str) -> None:
    compare(linear, tokens(1, 63, 3, 24, dtype), TOLERANCE[dtype], phi=phi)


@pytest.mark.slow
@pytest.mark.parametrize("phi", ["identity", "leaky_relu"])
def test_linear_with_sums_of_both_signs(phi: str) -> None:
    q, k, v = tokens(2, 63, 3, 24)
    k = (k.detach() + 4.0).requires_grad_()  # sums far enough from zero for float32
    q = (q.detach() + 4.0 * torch.tensor([-1.0, 1.0], device=DEVICE).view(2, 1, 1, 1)).requires_grad_()
    compare(linear, [q, k, v], TOLERANCE[torch.float32], phi=phi)


def test_linear_where_all_scores_vanish() -> None:
    q, k, v = tokens(1, 9, 2, 16)
    q = torch.cat([-q[:, :4].abs(), q[:, 4:].abs()], 1).detach().requires_grad_()
    compare(linear, [q, k, v], TOLERANCE[torch.float32], phi="relu")


@pytest.mark.slow
@pytest.mark.parametrize(("queries", "keys"), [(40, 77), (77, 40), (1, 33), (33, 1)])
def test_cross_attention(queries: int, keys: int, cut: str) -> None:
    q, k, v = tokens(2, queries, 2, 16)[0], *tokens(2, keys, 2, 16)[1:]
    compare(inline, [q, k, v], TOLERANCE[torch.float32], residual=False)
    compare(linear, [q, k, v], TOLERANCE[torch.float32], phi="elu1")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["inline", "linear"])
def test_key_mask_hides_anything(kind: str, cut: str) -> None:
    q, k, v = tokens(3, 30, 2, 16)
    mask = torch.rand(3, 30, device=DEVICE) > 0.3
    mask[0, 0], mask[2] = False, False  # the first key hidden; a row without any
    for t, garbage in ((k, torch.nan), (v, torch.inf)):
        t.data.masked_fill_(~mask[:, :, None, None], garbage)
    if kind == "linear":
        compare(linear, [q, k, v], TOLERANCE[torch.float32], phi="elu1", key_mask=mask)
    else:
        inputs = [q, k, v, weights(3, 32)]
        compare(inline, inputs, TOLERANCE[torch.float32], grid=(6, 5), key_mask=mask)


@pytest.mark.parametrize("kind", ["expanded", "strided"])
def test_key_mask_of_any_strides(kind: str) -> None:
    mask = torch.rand(2, 24, device=DEVICE) > 0.3
    mask = mask[:1, :12].expand(2, -1) if kind == "expanded" else mask[:, ::2]
    inputs = [*tokens(2, 12, 1, 16), weights(2, 16)]
    compare(inline, inputs, TOLERANCE[torch.float32], grid=(3, 4), key_mask=mask)


@pytest.mark.usefixtures("overflow_checks")
@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed_images(dtype: torch.dtype, cut: str) -> None:
    grids = [(3, 4), (1, 1), (4, 5), (1, 9)]
    ends = torch.tensor([0, *torch.tensor([h * w + 1 for h, w in grids]).cumsum(0)], device=DEVICE)
    inputs = [*tokens(1, int(ends[-1]), 2, 16, dtype), weights(4, 32, dtype)]
    compare(inline, inputs, TOLERANCE[dtype], cu_seqlens=ends, grids=grids, prefix=1)
    compare(linear, inputs[:3], TOLERANCE[dtype], cu_seqlens=ends, phi="elu1")


def test_packed_with_an_empty_image() -> None:
    grids = [(3, 4), (0, 0), (2, 5)]
    inputs = [*tokens(1, 22, 2, 16), weights(3, 32)]
    compare(inline, inputs, TOLERANCE[torch.float32], cu_seqlens=torch.tensor([0, 12, 12, 22]), grids=grids)


def test_affine_feature_map(cut: str) -> None:
    q, k, v = tokens(2, 30, 2, 16)
    w, b = torch.randn(2, 16, 16, device=DEVICE).requires_grad_(), torch.randn(2, 16, device=DEVICE).requires_grad_()

    def run(q, k, v, w, b, **options):  # type: ignore[no-untyped-def]
        return inline_attention(q, k, v, phi="relu_affine", affine=(w, b), **options)

    compare(run, [q, k, v, w, b], TOLERANCE[torch.float32])


def test_large_means_do_not_cancel(cut: str) -> None:
    q, k, v = (t.detach() + 50.0 for t in tokens(2, 63, 2, 16))
    compare(inline, [q.requires_grad_(), k.requires_grad_(), v.requires_grad_()], 1e-5, residual=False)


def test_float16_does_not_overflow() -> None:
    count = 65536 if GPU else 2048
    q, k, v = (100 * t.detach().abs() for t in tokens(1, count, 1, 16, torch.float16))
    out = inline_attention(q, k, v, scale=1e-4, backend="triton")
    want = inline_attention(q.double(), k.double(), v.double(), scale=1e-4, backend="torch")
    assert_close("output", out, want, TOLERANCE[torch.float16])


@pytest.mark.slow
@pytest.mark.parametrize("grid", [(7, 5), (1, 35)])
def test_same_bits_twice_and_in_any_batch(grid: tuple[int, int], cut: str) -> None:
    inputs = [*tokens(2, 35, 1, 16), weights(2, 16)]
    grad = torch.randn(2, 35, 1, 16, device=DEVICE)

    def run(rows: slice) -> list[torch.Tensor]:
        few = [t.detach()[rows].requires_grad_() for t in inputs]
        out = inline(*few, grid=grid, backend="triton")
        return [out, *torch.autograd.grad(out, few, grad[rows])]

    whole, again, part = run(slice(None)), run(slice(None)), run(slice(1, 2))
    for first, second, few in zip(whole, again, part, strict=True):
        assert torch.equal(first, second)
        assert torch.equal(first[1:2], few)


@on_gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("side", "heads", "dim"), [(128, 6, 32), (256, 2, 64), (512, 1, 32)])
def test_long_sequences(side: int, heads: int, dim: int, dtype: torch.dtype) -> None:
    inputs = [*tokens(1, side * side, heads, dim, dtype), weights(1, heads * dim, dtype)]
    compare(inline, inputs, TOLERANCE[dtype], grid=(side, side))


@on_gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("dim", [32, 64, 80, 96, 128])
@pytest.mark.parametrize("residual", [True, False])
def test_same_bits_every_time(dim: int, dtype: torch.dtype, residual: bool) -> None:
    """With many programs at once: only then did pipelined sums of 128 channels differ."""
    inputs = [*tokens(64, 4096, 1, dim, dtype), *([weights(64, dim, dtype)] if residual else [])]
    grad = torch.randn(64, 4096, 1, dim, device=DEVICE, dtype=dtype)
    first: list[torch.Tensor] = []
    for _ in range(8):
        out = inline(*inputs, residual=residual, backend="triton", **({"grid": (64, 64)} if residual else {}))
        results = [out, *torch.autograd.grad(out, inputs, grad)]
        first = first or results
        assert all(torch.equal(a, b) for a, b in zip(results, first, strict=True))


@on_gpu
def test_more_than_two_to_the_31_elements() -> None:
    packed = torch.randn(60, 65536, 3, 1, 192, device=DEVICE, dtype=torch.bfloat16)[..., :128]
    q, k, v = packed.unbind(2)
    out = inline_attention(q, k, v, backend="triton")
    want = inline_attention(q[-1:].float(), k[-1:].float(), v[-1:].float(), backend="torch")
    assert_close("output", out[-1:], want.double(), TOLERANCE[torch.bfloat16])


@pytest.mark.gpu
@pytest.mark.parametrize("warps", [4, 8])
@pytest.mark.parametrize(("count", "dim"), [(196, 80), (196, 96), (4096, 80), (4096, 96)])
def test_products_of_128_channels_of_which_80_or_96_are_live(
    count: int, dim: int, warps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sums over the keys in tiles of 128 channels.

    Sums of 4 warps were 3 to 6 % off with Triton 3.6 on compute capability 9.0 while kernels took the strides of heads
    and channels; the plans use 8 warps.
    """
    rules = planning.plan

    def with_warps(*args: object) -> planning.Plan:
        plan = rules(*args)
        tiles = {name: replace(getattr(plan, name), warps=warps) for name in ("sums", "queries")}
        assert {tile.width for tile in tiles.values()} == {128}
        return replace(plan, **tiles)

    monkeypatch.setattr(planning, "plan", with_warps)
    forget()
    try:
        compare(inline, tokens(2, count, 2, dim, torch.bfloat16), TOLERANCE[torch.bfloat16], residual=False)
    finally:
        forget()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", range(65, 129, 7))
def test_tiles_of_128_channels_sum_with_8_warps(dim: int, dtype: torch.dtype) -> None:
    for count in (196, 4096):
        for linear_attention in (False, True):
            plan = planning.plan(2, dim, count, (0, 0), dtype, linear_attention)
            assert (plan.sums.width, plan.sums.warps, plan.queries.width, plan.queries.warps) == (128, 8, 128, 8)
