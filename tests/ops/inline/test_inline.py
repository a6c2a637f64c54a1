"""InLine attention and its local residual against their definitions."""

import pytest
import torch
from torch import Tensor, nn

from sightline.ops import inline_attention

from .. import toy
from ..brute_force import (
    HALVES,
    HEAD_DIMS,
    NS,
    PHIS,
    SINGLE,
    affine,
    assert_autocast_changes_nothing,
    assert_close,
    assert_half_follows_single,
    assert_same,
    attend,
    inline_weights,
    neighbours,
    qkv,
    some_keys,
    tokens,
    value_and_grads,
)

GRIDS = [(3, 5), (1, 7), (7, 1), (1, 1)]
GRID_OF = {1: (1, 1), 49: (7, 7), 63: (9, 7), 196: (14, 14), 197: (14, 14)}


def definition(q: Tensor, k: Tensor, v: Tensor, phi: str = "identity", *params: Tensor, **options: object) -> Tensor:
    return attend(inline_weights(q, k, phi, *params, **options), v)


def with_residual(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    r: Tensor,
    grid: tuple[int, int],
    prefix: int = 0,
    mask: Tensor | None = None,
) -> Tensor:
    return definition(q, k, v, mask=mask) + neighbours(v, r, grid, prefix, mask)


@pytest.mark.parametrize("dim", HEAD_DIMS)
@pytest.mark.parametrize("n", NS)
def test_matches_definition(n: int, dim: int) -> None:
    assert_same(inline_attention, definition, *qkv(2, n, 3, dim))


@pytest.mark.parametrize("phi", [p for p in PHIS if p != "relu_affine"])
def test_every_feature_map(phi: str) -> None:
    assert_same(lambda *x: inline_attention(*x, phi=phi), lambda *x: definition(*x, phi), *qkv(2, 49, 3, 24))


def test_affine_feature_map() -> None:
    assert_same(
        lambda q, k, v, w, b: inline_attention(q, k, v, phi="relu_affine", affine=(w, b)),
        lambda q, k, v, w, b: definition(q, k, v, "relu_affine", w, b),
        *(*qkv(2, 49, 3, 24), *affine(3, 24)),
    )


@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_scale(scale: float) -> None:
    assert_same(
        lambda *x: inline_attention(*x, scale=scale),
        lambda *x: definition(*x, scale=scale),
        *qkv(2, 9, 3, 24),
    )


def test_cross_attention_with_a_different_value_dim() -> None:
    assert_same(inline_attention, definition, tokens(2, 7, 3, 24), tokens(2, 13, 3, 24), tokens(2, 13, 3, 10))


@pytest.mark.slow
@pytest.mark.parametrize("dim", HEAD_DIMS)
@pytest.mark.parametrize("n", NS)
def test_residual(n: int, dim: int) -> None:
    grid, prefix = GRID_OF[n], n - GRID_OF[n][0] * GRID_OF[n][1]
    assert_same(
        lambda q, k, v, r: inline_attention(q, k, v, residual=r, grid=grid, prefix=prefix),
        lambda q, k, v, r: with_residual(q, k, v, r, grid, prefix),
        *(*qkv(2, n, 2, dim), tokens(2, 2 * dim, 3, 3)),
    )


@pytest.mark.parametrize("prefix", [0, 1, 3])
@pytest.mark.parametrize("grid", GRIDS)
def test_residual_on_any_grid_after_a_prefix(grid: tuple[int, int], prefix: int) -> None:
    n = grid[0] * grid[1] + prefix
    assert_same(
        lambda q, k, v, r: inline_attention(q, k, v, residual=r, grid=grid, prefix=prefix),
        lambda q, k, v, r: with_residual(q, k, v, r, grid, prefix),
        *(*qkv(2, n, 3, 24), tokens(2, 72, 3, 3)),
    )


def test_residual_with_a_different_value_dim() -> None:
    assert_same(
        lambda q, k, v, r: inline_attention(q, k, v, residual=r, grid=(3, 5)),
        lambda q, k, v, r: with_residual(q, k, v, r, (3, 5)),
        *(tokens(2, 15, 3, 24), tokens(2, 15, 3, 24), tokens(2, 15, 3, 8), tokens(2, 24, 3, 3)),
    )


def test_matches_definition_in_float32() -> None:
    assert_same(
        lambda q, k, v, r: inline_attention(q, k, v, residual=r, grid=(14, 14), prefix=1),
        lambda q, k, v, r: with_residual(q, k, v, r, (14, 14), 1),
        *(*qkv(2, 197, 3, 32, torch.float32), tokens(2, 96, 3, 3, dtype=torch.float32)),
        tolerance=SINGLE,
    )


@pytest.mark.slow
@pytest.mark.parametrize("phi", ["identity", "elu1", "exp"])
def test_gradcheck(phi: str) -> None:
    inputs = [t.requires_grad_() for t in (*qkv(2, 7, 2, 3), tokens(2, 6, 3, 3))]
    assert torch.autograd.gradcheck(
        lambda q, k, v, r: inline_attention(q, k, v, phi=phi, residual=r, grid=(2, 3), prefix=1), inputs
    )


@pytest.mark.parametrize(("n", "grid", "prefix"), [(1, (1, 1), 0), (63, (9, 7), 0), (197, (14, 14), 1)])
def test_views_of_a_packed_projection(n: int, grid: tuple[int, int], prefix: int) -> None:
    assert_same(
        lambda x, r: inline_attention(*x.unbind(2), residual=r, grid=grid, prefix=prefix),
        lambda x, r: with_residual(*x.unbind(2), r, grid, prefix),
        *(tokens(2, n, 3, 4, 24), tokens(2, 96, 3, 3)),
    )


@pytest.mark.parametrize("phi", PHIS[:-1])
def test_rows_of_weights_sum_to_one(phi: str) -> None:
    q, k, _ = qkv(2, 49, 3, 24)
    identity = torch.eye(49, dtype=torch.float64)[None, :, None].expand(2, -1, 3, -1)
    weights = inline_attention(q, k, identity, phi=phi)
    assert_close(weights.sum(-1), torch.ones(2, 49, 3), 1e-12)
    assert weights.std() > 1e-3  # not merely the uniform weights


@pytest.mark.parametrize("n", [2, 49, 197])
@pytest.mark.parametrize("phi", PHIS[:-1])
def test_key_mask(n: int, phi: str) -> None:
    mask = some_keys(3, n)
    assert_same(
        lambda *x: inline_attention(*x, phi=phi, key_mask=mask),
        lambda *x: definition(*x, phi, mask=mask),
        *qkv(3, n, 2, 24),
    )


@pytest.mark.parametrize("prefix", [0, 1, 3])
def test_masked_tokens_are_left_out_of_the_residual(prefix: int) -> None:
    mask = some_keys(2, 15 + prefix)
    assert_same(
        lambda q, k, v, r: inline_attention(q, k, v, residual=r, grid=(3, 5), prefix=prefix, key_mask=mask),
        lambda q, k, v, r: with_residual(q, k, v, r, (3, 5), prefix, mask),
        *(*qkv(2, 15 + prefix, 3, 24), tokens(2, 72, 3, 3)),
    )


@pytest.mark.parametrize("garbage", [7.0, -1e30, 3e38, float("inf"), float("nan")])
@pytest.mark.parametrize("phi", ["identity", "elu1", "exp"])
def test_masked_tokens_do_not_matter(phi: str, garbage: float) -> None:
    q, k, v = qkv(2, 15, 3, 24, torch.float32)
    residual, mask = tokens(2, 72, 3, 3, dtype=torch.float32), some_keys(2, 15)
    dirty = [t.masked_fill(~mask[:, :, None, None], garbage) for t in (k, v)]

    def function(q: Tensor, k: Tensor, v: Tensor, r: Tensor) -> Tensor:
        return inline_attention(q, k, v, phi=phi, residual=r, grid=(3, 5), key_mask=mask)

    clean, again = (
        value_and_grads(function, q, k, v, residual),
        value_and_grads(function, q, *dirty, residual),
    )
    for a, b in zip(clean, again, strict=True):
        assert torch.equal(a, b)


def test_row_without_keys_gives_zero() -> None:
    mask = torch.tensor([[True, True, False], [False, False, False]])
    out, *grads = value_and_grads(
        lambda q, k, v, r: inline_attention(q, k, v, residual=r, grid=(1, 3), key_mask=mask),
        *(*qkv(2, 3, 2, 24), tokens(2, 48, 3, 3)),
    )
    assert torch.equal(out[1], torch.zeros_like(out[1]))
    assert out[0].abs().min() > 0
    assert all(g.isfinite().all() for g in grads)


@pytest.mark.parametrize("prefix", [0, 1, 3])
def test_packed_equals_each_alone(prefix: int) -> None:
    grids = [*GRIDS, (2, 3)]
    sizes = [h * w + prefix for h, w in grids]
    ends = torch.tensor([0, *sizes]).cumsum(0)

    def alone(q: Tensor, k: Tensor, v: Tensor, r: Tensor) -> Tensor:
        parts = zip(*(t.split(sizes, 1) for t in (q, k, v)), r.split(1), grids, strict=True)
        return torch.cat([with_residual(*part, prefix) for part in parts], 1)

    assert_same(
        lambda q, k, v, r: inline_attention(q, k, v, residual=r, cu_seqlens=ends, grids=grids, prefix=prefix),
        alone,
        *(*qkv(1, sum(sizes), 3, 24), tokens(len(grids), 72, 3, 3)),
    )


def test_packed_with_an_empty_image() -> None:
    grids, sizes = [(2, 3), (0, 0), (1, 4)], [6, 0, 4]
    q, k, v, r = *qkv(1, 10, 3, 24), tokens(3, 72, 3, 3)
    ends = torch.tensor([0, 6, 6, 10], dtype=torch.int32)

    def without_it(q: Tensor, k: Tensor, v: Tensor, r: Tensor) -> Tensor:
        first, last = ([t.split(sizes, 1)[i] for t in (q, k, v)] for i in (0, 2))
        return torch.cat([with_residual(*first, r[:1], (2, 3)), with_residual(*last, r[2:], (1, 4))], 1)

    assert_same(
        lambda *x: inline_attention(*x[:3], residual=x[3], cu_seqlens=ends, grids=grids),
        without_it,
        q,
        k,
        v,
        r,
    )


@pytest.mark.parametrize("sizes", [(5, 1, 9), (4, 0, 3), (0,), (0, 2)])
def test_packed_without_residual(sizes: tuple[int, ...]) -> None:
    ends = torch.tensor([0, *sizes]).cumsum(0)

    def alone(*x: Tensor) -> Tensor:
        return torch.cat([definition(*p) for p in zip(*(t.split(sizes, 1) for t in x), strict=True)], 1)

    assert_same(lambda *x: inline_attention(*x, cu_seqlens=ends), alone, *qkv(1, sum(sizes), 3, 24))


def test_an_image_of_prefix_tokens_only_has_no_residual() -> None:
    q, k, v = qkv(2, 3, 3, 24)
    out = inline_attention(q, k, v, residual=tokens(2, 72, 3, 3), grid=(0, 0), prefix=3)
    assert_close(out, definition(q, k, v), 1e-12)


@pytest.mark.parametrize(("batch", "n", "m"), [(0, 5, 5), (2, 0, 0), (2, 0, 4), (2, 4, 0)])
def test_empty(batch: int, n: int, m: int) -> None:
    q, k, v = tokens(batch, n, 3, 24), tokens(batch, m, 3, 24), tokens(batch, m, 3, 8)
    out, *grads = value_and_grads(inline_attention, q, k, v)
    assert torch.equal(out, torch.zeros(batch, n, 3, 8, dtype=out.dtype))
    assert [g.shape for g in grads] == [q.shape, k.shape, v.shape]
    assert all(g.isfinite().all() for g in grads)


@pytest.mark.parametrize(("batch", "grid"), [(0, (2, 3)), (2, (0, 0)), (2, (0, 4))])
def test_empty_with_residual(batch: int, grid: tuple[int, int]) -> None:
    q, k, v = qkv(batch, grid[0] * grid[1], 3, 24)
    residual = tokens(batch, 72, 3, 3)
    assert inline_attention(q, k, v, residual=residual, grid=grid).shape == q.shape


def test_images_are_independent() -> None:
    sizes = torch.tensor([1.0, 1e3, 1e-3])[:, None, None, None]
    batch = [t * sizes for t in qkv(3, 49, 3, 32, torch.float32)]
    residual = tokens(3, 96, 3, 3, dtype=torch.float32) * sizes
    together = inline_attention(*batch, residual=residual, grid=(7, 7))
    for i in range(3):
        alone = inline_attention(*(t[i : i + 1] for t in batch), residual=residual[i : i + 1], grid=(7, 7))
        assert_close(alone / together[i].abs().max(), together[i : i + 1] / together[i].abs().max(), 1e-6)


@pytest.mark.parametrize("phi", ["identity", "exp"])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("n", [1, 49, 197])
def test_half_precision(n: int, dtype: torch.dtype, phi: str) -> None:
    grid, prefix = GRID_OF[n], n - GRID_OF[n][0] * GRID_OF[n][1]
    assert_half_follows_single(
        lambda q, k, v, r: inline_attention(q, k, v, phi=phi, residual=r, grid=grid, prefix=prefix),
        *(*qkv(2, n, 3, 32, dtype), tokens(2, 96, 3, 3, dtype=dtype)),
    )


def test_half_precision_does_not_overflow_at_65536_tokens() -> None:
    q, k, v = ((30 + 5 * t).half() for t in qkv(1, 65536, 1, 24))
    v = v + (k - 30) / 4  # a covariance to find
    residual = tokens(1, 24, 3, 3).half()

    def function(*x: Tensor) -> Tensor:
        return inline_attention(*x[:3], residual=x[3], grid=(256, 256))

    # Rounding to float16 is all that may be lost: the sums over tokens exceed its range thirty times.
    got = value_and_grads(lambda *x: inline_attention(*x), q, k, v)
    want = value_and_grads(lambda *x: inline_attention(*x), q.double(), k.double(), v.double())
    assert want[0].sum(1).abs().max() > 65504
    assert_close(got[0], want[0], torch.finfo(torch.float16).eps)
    assert all(g.isfinite().all() for g in got)
    half = function(q, k, v, residual)
    assert_close(half, function(*(t.double() for t in (q, k, v, residual))), torch.finfo(torch.float16).eps)


def test_autocast_does_not_lower_the_sums() -> None:
    inputs = [(30 + 5 * t).half() for t in qkv(1, 4096, 1, 24)]  # sums of 30 * 30 over 4096 tokens
    assert_autocast_changes_nothing(
        lambda q, k, v, r: inline_attention(q, k, v, residual=r, grid=(64, 64)),
        *(*inputs, tokens(1, 24, 3, 3).half()),
    )


def test_figure_one() -> None:
    scores = inline_attention(toy.QUERIES, toy.KEYS, toy.IDENTITY, scale=toy.SCALE)
    toy.assert_shows(scores, toy.INLINE)


def test_figure_one_at_the_default_scale() -> None:
    scores = inline_attention(toy.QUERIES, toy.KEYS, toy.IDENTITY)
    toy.assert_shows(scores[:, :3], toy.INLINE[:3])
    torch.testing.assert_close(scores[0, 3, 0], toy.INLINE[3], rtol=0, atol=0.015)


class WithResidual(nn.Module):
    """InLine attention of a 3x4 map after a class token, for the compiler and the exporter."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, residual: Tensor) -> Tensor:
        return inline_attention(q, k, v, phi="elu1", residual=residual, grid=(3, 4), prefix=1)


def test_compiles_without_graph_breaks() -> None:
    inputs = (*qkv(2, 13, 3, 8, torch.float32), tokens(2, 24, 3, 3, dtype=torch.float32))
    compiled = torch.compile(WithResidual(), fullgraph=True, backend="aot_eager")
    for a, b in zip(value_and_grads(compiled, *inputs), value_and_grads(WithResidual(), *inputs), strict=True):
        assert_close(a, b, 1e-6)


def test_exports() -> None:
    inputs = (*qkv(2, 13, 3, 8, torch.float32), tokens(2, 24, 3, 3, dtype=torch.float32))
    program = torch.export.export(WithResidual(), inputs)
    assert_close(program.module()(*inputs), WithResidual()(*inputs), 1e-6)


@pytest.mark.parametrize("offset", [10.0, 1000.0])
def test_large_means_do_not_cancel(offset: float) -> None:
    """The attention part is as accurate as float32 inputs allow: relative to the spread, not to the means."""
    generator = torch.Generator().manual_seed(5)
    q, k, v = (torch.randn(2, 196, 2, 16, generator=generator) + shift for shift in (0.0, offset, offset))
    got = inline_attention(q, k, v).double() - v.double().mean(1, keepdim=True)
    want = inline_attention(q.double(), k.double(), v.double()) - v.double().mean(1, keepdim=True)
    assert (got - want).norm() / want.norm() < 1e-6 * offset
