"""SOFT and SOFT++ against their definitions: inverses by torch.linalg, and Newton steps written out."""

import pytest
import torch
from torch import Tensor, nn

from sightline.ops import soft_attention
from sightline.ops.soft.newton import convergence, newton_inverse, step_size
from sightline.ops.soft.reference import gaussian as gaussian_by_products
from sightline.ops.soft.reference import landmark_inverse

from ..brute_force import (
    HALVES,
    HEAD_DIMS,
    NS,
    SINGLE,
    assert_autocast_changes_nothing,
    assert_close,
    assert_half_follows_single,
    assert_same,
    attend,
    cotangent,
    gaussian,
    largest_row_sum,
    newton,
    soft_weights,
    some_keys,
    tokens,
    value_and_grads,
)

both = pytest.mark.parametrize("normalized", [False, True], ids=["soft", "soft++"])


def inputs(
    batch: int = 2, n: int = 49, m: int = 9, heads: int = 3, dim: int = 24, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    """q, v, landmarks; far enough apart in these dimensions for twenty Newton steps to reach the inverse."""
    shapes = (batch, n, heads, dim), (batch, n, heads, dim), (batch, m, heads, dim)
    sizes = dim**-0.25, 1.0, dim**-0.25
    return [tokens(*shape).mul(size).to(dtype) for shape, size in zip(shapes, sizes, strict=True)]


def definition(q: Tensor, v: Tensor, landmarks: Tensor, normalized: bool, **options: object) -> Tensor:
    return attend(soft_weights(q, landmarks, normalized, **options), v)


@both
@pytest.mark.parametrize("dim", HEAD_DIMS)
@pytest.mark.parametrize("n", NS)
def test_matches_definition(n: int, dim: int, normalized: bool) -> None:
    """Also the gradient: taken once, it is the one through torch.linalg.inv."""
    assert_same(
        lambda *x: soft_attention(*x, normalized=normalized),
        lambda *x: definition(*x, normalized),
        *inputs(n=n, dim=dim),
    )


@both
def test_matches_definition_in_float32(normalized: bool) -> None:
    assert_same(
        lambda *x: soft_attention(*x, normalized=normalized),
        lambda *x: definition(*x, normalized),
        *inputs(n=197, m=49, dim=32, dtype=torch.float32),
        tolerance=SINGLE,
    )


@both
@pytest.mark.parametrize("m", [1, 2, 5, 49])
def test_any_number_of_landmarks(m: int, normalized: bool) -> None:
    """One or two landmarks have equal row sums, where a step of exactly 2 / ||A||_1^2 never converges."""
    assert_same(
        lambda *x: soft_attention(*x, normalized=normalized),
        lambda *x: definition(*x, normalized),
        *inputs(m=m),
    )


@both
def test_gradcheck(normalized: bool) -> None:
    q, v, landmarks = inputs(n=5, m=4, heads=2, dim=3)
    leaves = [t.requires_grad_() for t in (q, v, landmarks * 3)]
    assert torch.autograd.gradcheck(lambda *x: soft_attention(*x, normalized=normalized), leaves)


@both
@pytest.mark.parametrize("n", [1, 63, 197])
def test_views_of_a_packed_projection(n: int, normalized: bool) -> None:
    assert_same(
        lambda x, t: soft_attention(x[:, :, 0], x[:, :, 2], t, normalized=normalized),
        lambda x, t: definition(x[:, :, 0], x[:, :, 2], t, normalized),
        *(tokens(2, n, 3, 4, 24) / 24**0.25, tokens(2, 9, 4, 24) / 24**0.25),
    )


@both
def test_different_value_dim(normalized: bool) -> None:
    q, _, landmarks = inputs()
    assert_same(
        lambda *x: soft_attention(*x, normalized=normalized),
        lambda *x: definition(*x, normalized),
        *(q, tokens(2, 49, 3, 10), landmarks),
    )


def crowded() -> list[Tensor]:
    """Landmarks so close together that the inverse is not reached."""
    q, v, landmarks = inputs(n=15, m=8, dim=4)
    return [q * 0.3, v, landmarks * 0.3]


@pytest.mark.parametrize("iterations", [1, 3, 20])
def test_steps_of_soft(iterations: int) -> None:
    q, v, landmarks = crowded()
    ridged = gaussian(landmarks, landmarks) + 0.01 * torch.eye(8)

    def inverse(matrix: Tensor) -> Tensor:
        torch.testing.assert_close(matrix, ridged)
        return newton(matrix, 0.9 * 2 / largest_row_sum(gaussian(landmarks, landmarks)) ** 2, iterations)

    got = soft_attention(q, v, landmarks, normalized=False, iterations=iterations)
    assert_close(got, definition(q, v, landmarks, False, inverse=inverse), 1e-9)
    assert convergence(ridged, inverse(ridged)).max() > 1e-3 or iterations == 20


@pytest.mark.parametrize("iterations", [1, 3, 20])
def test_steps_of_soft_plus_plus(iterations: int) -> None:
    """The library keeps its first step a ten-thousandth below the paper's 2 / ||A||_1^2."""
    q, v, landmarks = crowded()

    def steps(factor: float) -> Tensor:
        return definition(
            *(q, v, landmarks, True),
            inverse=lambda a: newton(a, factor / largest_row_sum(a) ** 2, iterations),
        )

    got = soft_attention(q, v, landmarks, normalized=True, iterations=iterations)
    assert_close(got, steps(2 * 0.9999), 1e-9)
    if iterations == 20:
        assert_close(got, steps(2), 1e-4)
    limit = definition(q, v, landmarks, True)
    assert (got - limit).abs().max() > 1e-2 * limit.abs().max()  # not there yet: the steps matter


def test_newton_inverse_takes_the_steps_and_one_gradient() -> None:
    matrix = gaussian(crowded()[2], crowded()[2])
    step = 2 / largest_row_sum(matrix)[..., None, None] ** 2
    out, grad = value_and_grads(lambda a: newton_inverse(a, step, 4), matrix)
    assert_close(out, newton(matrix, step, 4), 1e-12)
    assert_close(grad, -out.mT @ cotangent(out) @ out.mT, 1e-12)


def test_newton_gradcheck_when_converged() -> None:
    matrix = gaussian(*[tokens(1, 4, 2, 3) * 2] * 2).requires_grad_()
    step = 1.8 / largest_row_sum(matrix.detach())[..., None, None] ** 2
    assert torch.autograd.gradcheck(lambda a: newton_inverse(a, step, 40), [matrix])


def test_step_size_per_matrix() -> None:
    matrices = torch.stack([torch.eye(3) * size for size in (1.0, 10.0, 0.1)]).reshape(3, 1, 3, 3)
    matrices[1, 0, 0, 2] = -5.0  # a row sum of absolute values
    expected = torch.tensor([1.5, 1.5 / 225, 150.0]).reshape(3, 1, 1, 1)
    torch.testing.assert_close(step_size(matrices, 1.5), expected)


def test_convergence_per_matrix() -> None:
    matrix = torch.stack([2 * torch.eye(3), torch.eye(3)])
    torch.testing.assert_close(convergence(matrix, torch.stack([torch.eye(3), torch.eye(3)])), torch.tensor([1.0, 0.0]))


@both
@pytest.mark.parametrize("iterations", [3, 20])
@pytest.mark.parametrize("spread", [0.05, 20.0])
def test_images_are_independent(spread: float, iterations: int, normalized: bool) -> None:
    q, v, landmarks = inputs(batch=3, dtype=torch.float32)
    sizes = torch.tensor([1.0, spread, 1.0])[:, None, None, None]  # of another image: its norm is 9, or 1
    q, landmarks = q * sizes, landmarks * sizes
    together = soft_attention(q, v, landmarks, normalized=normalized, iterations=iterations)
    for i in (0, 2):
        alone = soft_attention(*(t[i : i + 1] for t in (q, v, landmarks)), normalized=normalized, iterations=iterations)
        assert_close(alone, together[i : i + 1], 1e-6)


def test_heads_are_independent() -> None:
    q, v, landmarks = inputs()
    landmarks[:, :, 1] *= 0.01
    together = soft_attention(q, v, landmarks, normalized=True, iterations=3)
    alone = soft_attention(*(t[:, :, :1] for t in (q, v, landmarks)), normalized=True, iterations=3)
    assert_close(alone, together[:, :, :1], 1e-12)


@both
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALVES])
def test_identical_landmarks(dtype: torch.dtype, normalized: bool) -> None:
    """A flat image: A is all ones, of rank one, and the result is that of the pseudo-inverse."""
    q, v, landmarks = inputs(dtype=dtype)
    landmarks = landmarks[:, :1].expand(-1, 9, -1, -1)
    out, *grads = value_and_grads(lambda *x: soft_attention(*x, normalized=normalized), q, v, landmarks)
    expected = definition(q.double(), v.double(), landmarks.double(), normalized, inverse=torch.linalg.pinv)
    assert_close(out, expected, {torch.float64: 1e-9, torch.float32: 1e-5}.get(dtype, torch.finfo(dtype).eps))
    assert all(g.isfinite().all() for g in grads)


@both
@pytest.mark.parametrize("noise", [0.0, 1e-6, 1e-3])
def test_landmarks_in_coinciding_pairs(noise: float, normalized: bool) -> None:
    q, v, landmarks = inputs(dtype=torch.float32)
    landmarks = torch.cat([landmarks, landmarks + noise * tokens(*landmarks.shape)], 1).float()
    out, *grads = value_and_grads(lambda *x: soft_attention(*x, normalized=normalized), q, v, landmarks)
    assert all(t.isfinite().all() for t in (out, *grads))
    if noise == 0:
        wide = (t.double() for t in (q, v, landmarks))
        assert_close(out, definition(*wide, normalized, inverse=torch.linalg.pinv), 1e-3)


def test_far_from_the_origin_a_point_is_still_at_distance_zero_from_itself() -> None:
    """There the expansion of the square rounds to either side of zero, in float32."""
    points = 300 + tokens(64, 1, 1, 24, dtype=torch.float32)
    assert gaussian_by_products(points, points).max() <= 1
    ones = torch.ones(64, 1, 1, 1)
    torch.testing.assert_close(landmark_inverse(points, True, 20), ones)
    torch.testing.assert_close(landmark_inverse(points, False, 20), ones / 1.01)


@both
@pytest.mark.parametrize("n", [2, 49, 197])
def test_key_mask(n: int, normalized: bool) -> None:
    mask = some_keys(2, n)
    assert_same(
        lambda *x: soft_attention(*x, normalized=normalized, key_mask=mask),
        lambda *x: definition(*x, normalized, mask=mask),
        *inputs(n=n),
    )


@both
@pytest.mark.parametrize("garbage", [7.0, -1e4, 1e18])
def test_masked_tokens_do_not_matter(garbage: float, normalized: bool) -> None:
    q, v, landmarks = inputs(dtype=torch.float32)
    mask = some_keys(2, 49)
    dirty = [t.masked_fill(~mask[:, :, None, None], garbage) for t in (q, v)]

    def valid_queries(*x: Tensor) -> Tensor:
        return soft_attention(*x, normalized=normalized, key_mask=mask)[mask]

    for a, b in zip(
        value_and_grads(valid_queries, q, v, landmarks),
        value_and_grads(valid_queries, *dirty, landmarks),
        strict=True,
    ):
        assert_close(b, a, 1e-6)


@pytest.mark.parametrize("garbage", [3e38, float("inf"), float("nan")])
def test_masked_tokens_beyond_range_reach_no_other_query(garbage: float) -> None:
    q, v, landmarks = inputs(dtype=torch.float32)
    mask = some_keys(2, 49)
    dirty = [t.masked_fill(~mask[:, :, None, None], garbage) for t in (q, v)]
    got = soft_attention(*dirty, landmarks, normalized=True, key_mask=mask)
    assert_close(got[mask], soft_attention(q, v, landmarks, normalized=True, key_mask=mask)[mask], 1e-6)


@both
def test_row_without_keys_gives_zero(normalized: bool) -> None:
    mask = torch.tensor([[True, True, False], [False, False, False]])
    out, *grads = value_and_grads(lambda *x: soft_attention(*x, normalized=normalized, key_mask=mask), *inputs(n=3))
    assert torch.equal(out[1], torch.zeros_like(out[1]))
    assert out[0].abs().min() > 0
    assert all(g.isfinite().all() for g in grads)


@both
@pytest.mark.parametrize(("sizes", "counts"), [((5, 1, 9), (4, 2, 9)), ((4, 0, 3), (2, 1, 3)), ((0,), (2,))])
def test_packed_equals_each_alone(sizes: tuple[int, ...], counts: tuple[int, ...], normalized: bool) -> None:
    ends, landmark_ends = (torch.tensor([0, *s]).cumsum(0) for s in (sizes, counts))

    def alone(q: Tensor, v: Tensor, landmarks: Tensor) -> Tensor:
        parts = zip(q.split(sizes, 1), v.split(sizes, 1), landmarks.split(counts, 1), strict=True)
        return torch.cat([definition(*part, normalized) for part in parts], 1)

    assert_same(
        lambda *x: soft_attention(*x, normalized=normalized, cu_seqlens=ends, cu_landmarks=landmark_ends),
        alone,
        *inputs(batch=1, n=sum(sizes), m=sum(counts)),
    )


@both
@pytest.mark.parametrize(("batch", "n"), [(0, 5), (2, 0)])
def test_empty(batch: int, n: int, normalized: bool) -> None:
    q, v, landmarks = inputs(batch=batch, n=n)
    out, *grads = value_and_grads(lambda *x: soft_attention(*x, normalized=normalized), q, v, landmarks)
    assert out.shape == v.shape
    assert [g.shape for g in grads] == [q.shape, v.shape, landmarks.shape]
    assert torch.equal(grads[2], torch.zeros_like(landmarks))


@both
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("n", [1, 49, 197])
def test_half_precision(n: int, dtype: torch.dtype, normalized: bool) -> None:
    assert_half_follows_single(lambda *x: soft_attention(*x, normalized=normalized), *inputs(n=n, dim=32, dtype=dtype))


@both
def test_half_precision_does_not_overflow_at_65536_tokens(normalized: bool) -> None:
    """Half of v is about 30, half about -30: sums on the way leave float16's range, the result does not."""
    q, v, landmarks = inputs(batch=1, n=65536, m=6, heads=1)
    v = v + 30 * torch.cat([torch.ones(32768), -torch.ones(32768)])[None, :, None, None]
    q, v, landmarks = (0.6 * q).half(), v.half(), landmarks.half()
    way = gaussian(q.double(), landmarks.double())[:, :, :32768].mT @ v.double().transpose(1, 2)[:, :, :32768]
    assert way.abs().max() > 65504
    got = value_and_grads(lambda *x: soft_attention(*x, normalized=normalized), q, v, landmarks)
    want = value_and_grads(
        lambda *x: soft_attention(*x, normalized=normalized), *(t.double() for t in (q, v, landmarks))
    )
    assert_close(got[0], want[0], torch.finfo(torch.float16).eps)
    assert all(g.isfinite().all() for g in got)


@pytest.mark.slow
@both
def test_autocast_does_not_lower_the_sums(normalized: bool) -> None:
    def function(*x: Tensor) -> Tensor:
        return soft_attention(*x, normalized=normalized, iterations=3)  # each is traced

    assert_autocast_changes_nothing(function, *inputs(dtype=torch.float16))


class Soft(nn.Module):
    """SOFT++ or SOFT of a small input, for the compiler and the exporter."""

    def __init__(self, normalized: bool) -> None:
        super().__init__()
        self.normalized = normalized

    def forward(self, q: Tensor, v: Tensor, landmarks: Tensor) -> Tensor:
        return soft_attention(q, v, landmarks, normalized=self.normalized, iterations=3)


@pytest.mark.slow
@both
def test_compiles_without_graph_breaks(normalized: bool) -> None:
    module, x = Soft(normalized), inputs(n=13, m=4, dim=8, dtype=torch.float32)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    for a, b in zip(value_and_grads(compiled, *x), value_and_grads(module, *x), strict=True):
        assert_close(a, b, 1e-6)


@both
def test_exports(normalized: bool) -> None:
    module, x = Soft(normalized), inputs(n=13, m=4, dim=8, dtype=torch.float32)
    program = torch.export.export(module, tuple(x))
    assert_close(program.module()(*x), module(*x), 1e-6)
