"""Linear attention against its definition."""

import pytest
import torch
from torch import Tensor

from sightline.ops import linear_attention

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
    linear_weights,
    qkv,
    some_keys,
    tokens,
    value_and_grads,
)

POSITIVE = ("relu", "elu1", "exp")  # the row sum cannot cross zero


def definition(q: Tensor, k: Tensor, v: Tensor, phi: str = "relu", *params: Tensor, **options: Tensor) -> Tensor:
    return attend(linear_weights(q, k, phi, *params, **options), v)


@pytest.mark.parametrize("dim", HEAD_DIMS)
@pytest.mark.parametrize("n", NS)
def test_matches_definition(n: int, dim: int) -> None:
    assert_same(linear_attention, definition, *qkv(2, n, 3, dim))


@pytest.mark.parametrize("phi", [p for p in PHIS if p != "relu_affine"])
def test_every_feature_map(phi: str) -> None:
    # The last two maps can make a row sum near zero, where the weights and rounding grow.
    tolerance = 1e-10 if phi in POSITIVE else 1e-8
    assert_same(
        lambda *x: linear_attention(*x, phi=phi),
        lambda *x: definition(*x, phi),
        *qkv(2, 49, 3, 24),
        tolerance=tolerance,
    )


def test_affine_feature_map() -> None:
    assert_same(
        lambda q, k, v, w, b: linear_attention(q, k, v, phi="relu_affine", affine=(w, b)),
        lambda q, k, v, w, b: definition(q, k, v, "relu_affine", w, b),
        *(*qkv(2, 49, 3, 24), *affine(3, 24)),
    )


@pytest.mark.parametrize("phi", POSITIVE)
def test_matches_definition_in_float32(phi: str) -> None:
    assert_same(
        lambda *x: linear_attention(*x, phi=phi),
        lambda *x: definition(*x, phi),
        *qkv(2, 197, 3, 32, torch.float32),
        tolerance=SINGLE,
    )


@pytest.mark.parametrize("phi", ["elu1", "exp"])
def test_gradcheck(phi: str) -> None:
    inputs = [t.requires_grad_() for t in qkv(2, 5, 2, 3)]
    assert torch.autograd.gradcheck(lambda *x: linear_attention(*x, phi=phi), inputs)


@pytest.mark.parametrize("n", [1, 63, 197])
def test_views_of_a_packed_projection(n: int) -> None:
    assert_same(lambda x: linear_attention(*x.unbind(2)), lambda x: definition(*x.unbind(2)), tokens(2, n, 3, 4, 24))


def test_cross_attention_with_a_different_value_dim() -> None:
    assert_same(linear_attention, definition, tokens(2, 7, 3, 24), tokens(2, 13, 3, 24), tokens(2, 13, 3, 10))


def test_scores_that_all_vanish_give_zero() -> None:
    q, k, v = qkv(2, 9, 3, 24)
    out, *grads = value_and_grads(linear_attention, -q.abs(), k, v)
    assert torch.equal(out, torch.zeros_like(out))
    assert all(g.isfinite().all() for g in grads)
    assert torch.equal(linear_attention(q, -k.abs(), v), torch.zeros_like(v))


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_eps_bounds_the_mean_score_away_from_zero(sign: float) -> None:
    q = torch.full((1, 1, 1, 1), 1e-4 * sign, dtype=torch.float64)
    k = torch.ones(1, 3, 1, 1, dtype=torch.float64)
    v = torch.tensor([1.0, 2.0, 6.0], dtype=torch.float64).reshape(1, 3, 1, 1)
    bounded = linear_attention(q, k, v, phi="identity", eps=1e-2)
    torch.testing.assert_close(bounded, torch.full_like(q, 0.03), rtol=1e-12, atol=0)
    free = linear_attention(q, k, v, phi="identity")
    torch.testing.assert_close(free, torch.full_like(q, 3.0), rtol=1e-12, atol=0)


@pytest.mark.parametrize("phi", POSITIVE)
@pytest.mark.parametrize("n", [2, 49, 197])
def test_key_mask(n: int, phi: str) -> None:
    mask = some_keys(3, n)
    assert_same(
        lambda *x: linear_attention(*x, phi=phi, key_mask=mask),
        lambda *x: definition(*x, phi, mask=mask),
        *qkv(3, n, 2, 24),
    )


def test_eps_does_not_depend_on_padding() -> None:
    q, k, v = (t.abs() for t in qkv(1, 4, 2, 24))
    q = q * 1e-3
    padded = [torch.cat([t, t.new_zeros(1, 60, 2, 24)], 1) for t in (k, v)]
    mask = torch.arange(64)[None] < 4
    padded_out = linear_attention(q, *padded, key_mask=mask, eps=1e-1)
    assert_close(padded_out, linear_attention(q, k, v, eps=1e-1), 1e-12)


@pytest.mark.parametrize("garbage", [7.0, -1e30, 3e38, float("inf"), float("nan")])
@pytest.mark.parametrize("phi", POSITIVE)
def test_masked_tokens_do_not_matter(phi: str, garbage: float) -> None:
    q, k, v = qkv(2, 9, 3, 24, torch.float32)
    mask = some_keys(2, 9)
    dirty = [t.masked_fill(~mask[:, :, None, None], garbage) for t in (k, v)]
    clean = value_and_grads(lambda *x: linear_attention(*x, phi=phi, key_mask=mask), q, k, v)
    again = value_and_grads(lambda *x: linear_attention(*x, phi=phi, key_mask=mask), q, *dirty)
    for a, b in zip(clean, again, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("phi", PHIS[:-1])
def test_row_without_keys_gives_zero(phi: str) -> None:
    mask = torch.tensor([[True, True, False], [False, False, False]])
    out, *grads = value_and_grads(lambda *x: linear_attention(*x, phi=phi, key_mask=mask), *qkv(2, 3, 2, 24))
    assert torch.equal(out[1], torch.zeros_like(out[1]))
    assert out[0].abs().min() > 0
    assert all(g.isfinite().all() for g in grads)


@pytest.mark.parametrize("sizes", [(5, 1, 9), (4, 0, 3), (0,), (0, 2)])
def test_packed_equals_each_alone(sizes: tuple[int, ...]) -> None:
    ends = torch.tensor([0, *sizes], dtype=torch.int32).cumsum(0, dtype=torch.int32)

    def alone(*x: Tensor) -> Tensor:
        return torch.cat([definition(*p) for p in zip(*(t.split(sizes, 1) for t in x), strict=True)], 1)

    assert_same(lambda *x: linear_attention(*x, cu_seqlens=ends), alone, *qkv(1, sum(sizes), 3, 24))


@pytest.mark.parametrize(("batch", "n", "m"), [(0, 5, 5), (2, 0, 0), (2, 0, 4), (2, 4, 0)])
def test_empty(batch: int, n: int, m: int) -> None:
    q, k, v = tokens(batch, n, 3, 24), tokens(batch, m, 3, 24), tokens(batch, m, 3, 8)
    out, *grads = value_and_grads(linear_attention, q, k, v)
    assert torch.equal(out, torch.zeros(batch, n, 3, 8, dtype=out.dtype))
    assert [g.shape for g in grads] == [q.shape, k.shape, v.shape]
    assert all(g.isfinite().all() for g in grads)


def test_images_are_independent() -> None:
    batch = [t * torch.tensor([1.0, 1e3, 1e-2])[:, None, None, None] for t in qkv(3, 49, 3, 32, torch.float32)]
    together = linear_attention(*batch)
    for i in range(3):
        assert_close(linear_attention(*(t[i : i + 1] for t in batch)), together[i : i + 1], 1e-6)


@pytest.mark.parametrize("phi", POSITIVE)
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("n", [1, 49, 197])
def test_half_precision(n: int, dtype: torch.dtype, phi: str) -> None:
    assert_half_follows_single(lambda *x: linear_attention(*x, phi=phi), *qkv(2, n, 3, 32, dtype))


def test_half_precision_does_not_overflow_at_65536_tokens() -> None:
    half = [(30 + 5 * t).half() for t in qkv(1, 65536, 1, 24)]
    got = value_and_grads(linear_attention, *half)
    want = value_and_grads(linear_attention, *(t.double() for t in half))
    assert got[0].dtype == torch.float16
    assert_close(got[0], want[0], torch.finfo(torch.float16).eps)
    assert all(g.isfinite().all() for g in got)


def test_autocast_does_not_lower_the_sums() -> None:
    inputs = [(30 + 5 * t).half() for t in qkv(1, 4096, 1, 24)]  # sums of 30 * 30 over 4096 tokens
    assert_autocast_changes_nothing(linear_attention, *inputs)


def test_figure_one() -> None:
    scores = linear_attention(toy.QUERIES, toy.KEYS, toy.IDENTITY)
    toy.assert_shows(scores, toy.LINEAR)


@pytest.mark.parametrize("factor", [0.1, 3.0])
def test_relu_scores_do_not_depend_on_the_norm_of_a_query(factor: float) -> None:
    q, k, v = qkv(2, 9, 3, 24)
    assert_close(linear_attention(factor * q, k, v), linear_attention(q, k, v), 1e-12)


@pytest.mark.slow
def test_compiles_without_graph_breaks() -> None:
    mask = some_keys(2, 9)

    def function(*x: Tensor) -> Tensor:
        return linear_attention(*x, phi="elu1", key_mask=mask)

    inputs = qkv(2, 9, 3, 24, torch.float32)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for a, b in zip(value_and_grads(compiled, *inputs), value_and_grads(function, *inputs), strict=True):
        assert_close(a, b, 1e-6)
