"""Softmax attention against its definition."""

import pytest
import torch
from torch import Tensor

from sightline.ops import softmax_attention

from .. import toy
from ..brute_force import (
    HALVES,
    HEAD_DIMS,
    NS,
    SINGLE,
    assert_close,
    assert_same,
    attend,
    qkv,
    softmax_weights,
    some_keys,
    tokens,
    value_and_grads,
)

BIAS_SHAPES = [(2, 3, 7, 9), (1, 3, 7, 9), (3, 7, 9), (7, 9), (2, 1, 1, 9), (3, 1, 1)]


def definition(q: Tensor, k: Tensor, v: Tensor, **options: Tensor) -> Tensor:
    return attend(softmax_weights(q, k, **options), v)


@pytest.mark.parametrize("dim", HEAD_DIMS)
@pytest.mark.parametrize("n", NS)
def test_matches_definition(n: int, dim: int) -> None:
    assert_same(softmax_attention, definition, *qkv(2, n, 3, dim))


def test_matches_definition_in_float32() -> None:
    assert_same(softmax_attention, definition, *qkv(2, 197, 3, 32, torch.float32), tolerance=SINGLE)


def test_gradcheck() -> None:
    inputs = [t.requires_grad_() for t in (*qkv(2, 5, 2, 3), tokens(2, 5, 5))]
    assert torch.autograd.gradcheck(lambda q, k, v, b: softmax_attention(q, k, v, bias=b), inputs)


@pytest.mark.parametrize("n", [1, 63, 197])
def test_views_of_a_packed_projection(n: int) -> None:
    assert_same(lambda x: softmax_attention(*x.unbind(2)), lambda x: definition(*x.unbind(2)), tokens(2, n, 3, 4, 24))


def test_cross_attention_with_a_different_value_dim() -> None:
    assert_same(softmax_attention, definition, tokens(2, 7, 3, 24), tokens(2, 13, 3, 24), tokens(2, 13, 3, 10))


@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_scale(scale: float) -> None:
    assert_same(
        lambda *x: softmax_attention(*x, scale=scale),
        lambda *x: definition(*x, scale=scale),
        *qkv(2, 9, 3, 24),
    )


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("shape", BIAS_SHAPES)
def test_bias_of_any_broadcastable_shape(shape: tuple[int, ...], masked: bool) -> None:
    mask = some_keys(2, 9) if masked else None
    assert_same(
        lambda q, k, v, b: softmax_attention(q, k, v, bias=b, key_mask=mask),
        lambda q, k, v, b: definition(q, k, v, bias=b, mask=mask),
        *(tokens(2, 7, 3, 24), tokens(2, 9, 3, 24), tokens(2, 9, 3, 24), tokens(*shape)),
    )


@pytest.mark.parametrize("n", [2, 49, 197])
def test_key_mask(n: int) -> None:
    mask = some_keys(3, n)
    assert_same(
        lambda *x: softmax_attention(*x, key_mask=mask),
        lambda *x: definition(*x, mask=mask),
        *qkv(3, n, 2, 24),
    )


@pytest.mark.parametrize("garbage", [7.0, -1e30, 3e38, float("inf"), float("nan")])
def test_masked_tokens_do_not_matter(garbage: float) -> None:
    q, k, v = qkv(2, 9, 3, 24, torch.float32)
    mask = some_keys(2, 9)
    dirty = [t.masked_fill(~mask[:, :, None, None], garbage) for t in (k, v)]
    clean = value_and_grads(lambda *x: softmax_attention(*x, key_mask=mask), q, k, v)
    again = value_and_grads(lambda *x: softmax_attention(*x, key_mask=mask), q, *dirty)
    for a, b in zip(clean, again, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALVES])
@pytest.mark.parametrize("biased", [False, True])
def test_row_without_keys_gives_zero(biased: bool, dtype: torch.dtype) -> None:
    mask = torch.tensor([[True, True, False], [False, False, False]])
    inputs = [*qkv(2, 3, 2, 24, dtype), tokens(2, 3, 3, dtype=dtype)]
    out, *grads = value_and_grads(
        lambda q, k, v, b: softmax_attention(q, k, v, key_mask=mask, bias=b if biased else 0 * b), *inputs
    )
    assert torch.equal(out[1], torch.zeros_like(out[1]))
    assert out[0].abs().min() > 0
    assert all(g.isfinite().all() for g in grads)
    assert all(torch.equal(g[1], torch.zeros_like(g[1])) for g in grads[:3])


@pytest.mark.parametrize("sizes", [(5, 1, 9), (4, 0, 3), (0,), (0, 2)])
def test_packed_equals_each_alone(sizes: tuple[int, ...]) -> None:
    ends = torch.tensor([0, *sizes]).cumsum(0)

    def alone(*x: Tensor) -> Tensor:
        return torch.cat([definition(*p) for p in zip(*(t.split(sizes, 1) for t in x), strict=True)], 1)

    assert_same(lambda *x: softmax_attention(*x, cu_seqlens=ends), alone, *qkv(1, sum(sizes), 3, 24))


@pytest.mark.parametrize(("batch", "n", "m"), [(0, 5, 5), (2, 0, 0), (2, 0, 4), (2, 4, 0)])
def test_empty(batch: int, n: int, m: int) -> None:
    q, k, v = tokens(batch, n, 3, 24), tokens(batch, m, 3, 24), tokens(batch, m, 3, 8)
    out, *grads = value_and_grads(softmax_attention, q, k, v)
    assert torch.equal(out, torch.zeros(batch, n, 3, 8, dtype=out.dtype))
    assert [g.shape for g in grads] == [q.shape, k.shape, v.shape]
    assert all(g.isfinite().all() for g in grads)


def test_images_are_independent() -> None:
    batch = [t * torch.tensor([1.0, 1e3, 1e-3])[:, None, None, None] for t in qkv(3, 49, 3, 32, torch.float32)]
    together = softmax_attention(*batch)
    for i in range(3):
        assert_close(softmax_attention(*(t[i : i + 1] for t in batch)), together[i : i + 1], 1e-6)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("n", [1, 49, 197])
def test_half_precision(n: int, dtype: torch.dtype) -> None:
    half = qkv(2, n, 3, 32, dtype)
    got = value_and_grads(softmax_attention, *half)
    want = value_and_grads(softmax_attention, *(t.float() for t in half))
    for g, w in zip(got, want, strict=True):
        assert g.dtype == dtype
        assert_close(g.float(), w, 4 * torch.finfo(dtype).eps)


def test_half_precision_over_many_keys() -> None:
    q = tokens(1, 4, 2, 24, dtype=torch.float16)
    k, v = (30 + tokens(1, 65536, 2, 24) for _ in range(2))
    k, v = k.half(), v.half()
    assert_close(softmax_attention(q, k, v), softmax_attention(q.double(), k.double(), v.double()), 2e-3)


def test_figure_one() -> None:
    scores = softmax_attention(toy.QUERIES, toy.KEYS, toy.IDENTITY, scale=toy.SCALE)
    toy.assert_shows(scores, toy.SOFTMAX)


def test_figure_one_at_the_default_scale() -> None:
    scores = softmax_attention(toy.QUERIES, toy.KEYS, toy.IDENTITY)
    toy.assert_shows(scores[:, :3], toy.SOFTMAX[:3])
    torch.testing.assert_close(scores[0, 3, 0], toy.SOFTMAX[3], rtol=0, atol=0.015)


def test_compiles_without_graph_breaks() -> None:
    q, k, v, bias = *qkv(2, 9, 3, 24, torch.float32), tokens(3, 9, 9, dtype=torch.float32)
    mask = some_keys(2, 9)

    def function(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return softmax_attention(q, k, v, bias=bias, key_mask=mask)

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for a, b in zip(value_and_grads(compiled, q, k, v, bias), value_and_grads(function, q, k, v, bias), strict=True):
        assert_close(a, b, 1e-6)
