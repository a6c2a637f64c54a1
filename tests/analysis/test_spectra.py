"""Newton against closed forms, effective ranks of known matrices, memory that can be counted by hand."""

import math

import pytest
import torch

from sightline.analysis.capture import capture
from sightline.analysis.memory import LiveBytes, Stack, measure_peak, study_memory
from sightline.analysis.newton import condition_number, measure_newton, newton_errors, study_newton
from sightline.analysis.rank import (
    FACTORS,
    ROWS,
    SAMPLE,
    effective_rank,
    measure_rank,
    product_values,
    singular_values,
    study_rank,
)
from sightline.analysis.study import Subject
from sightline.layers.spec import MECHANISMS
from sightline.ops.soft.newton import step_size
from sightline.ops.soft.reference import landmark_matrix

from ..models.tiny import image, tiny
from .blocks import block_of


def test_newton_of_one_landmark() -> None:
    matrix, step = torch.tensor([[[1.01]]], dtype=torch.float64), torch.tensor([[[0.3]]], dtype=torch.float64)
    start = 1 - 0.3 * 1.01**2  # 1 - A X_0, squared by every step
    expected = [abs(start) ** (2**k) for k in range(7)]
    assert newton_errors(matrix, step, 6)[0].tolist() == pytest.approx(expected, rel=1e-6, abs=1e-13)


def test_newton_of_two_landmarks() -> None:
    c = 0.6  # eigenvalues 1 + c and 1 - c
    matrix = torch.tensor([[1, c], [c, 1]], dtype=torch.float64)
    step = step_size(matrix, 1.8)
    assert float(step) == pytest.approx(1.8 / 1.6**2)
    values = (1 + c, 1 - c)
    expected = [
        math.sqrt(sum((x * (1 - float(step) * x * x) ** (2**k)) ** 2 for x in values) / sum(x * x for x in values))
        for k in range(9)
    ]
    assert newton_errors(matrix, step, 8).tolist() == pytest.approx(expected, rel=1e-6, abs=1e-13)
    assert float(condition_number(matrix)) == pytest.approx(4.0)
    assert float(condition_number(torch.ones(2, 2))) == math.inf


def test_the_inverted_matrix_has_the_ridge_of_soft_only() -> None:
    landmarks = torch.tensor([[[0.0, 0], [1, 0]]])
    plain, *_ = landmark_matrix(landmarks, normalized=False)
    plus, step, _ = landmark_matrix(landmarks, normalized=True)
    assert plus[0].flatten().tolist() == pytest.approx([1, math.exp(-0.5), math.exp(-0.5), 1])
    assert plain[0, 0, 0] == pytest.approx(1.01)
    assert float(step) == pytest.approx((2 - 2e-4) / (1 + math.exp(-0.5)) ** 2)


@pytest.mark.parametrize("family", ["soft", "soft_norm"])
@torch.no_grad()
def test_newton_of_models(family: str) -> None:
    model, pictures = tiny(family), [image(64, 80, batch=1)[0] for _ in range(2)]
    study = study_newton([Subject(family, model, pictures)], 12)
    layers = study.facts["subjects"][0]["layers"]
    assert len(layers) == 3  # the last stage is softmax
    for layer in layers:
        assert len(layer["mean"]) == 13
        assert all(a <= b <= c for a, b, c in zip(layer["least"], layer["mean"], layer["most"], strict=True))
        assert layer["mean"][-1] < layer["mean"][0]
        assert layer["condition"]["least"] >= 1
    with pytest.raises(ValueError, match="no SOFT blocks"):
        measure_newton(capture(tiny("deit"), pictures[0]))


def test_effective_rank_of_known_matrices() -> None:
    assert float(effective_rank(torch.ones(7))) == pytest.approx(7)
    assert float(effective_rank(torch.tensor([3.0, 0, 0]))) == pytest.approx(1)
    assert float(effective_rank(torch.zeros(3))) == 0
    shares = torch.tensor([0.5, 0.25, 0.25])
    assert float(effective_rank(shares * 9)) == pytest.approx(2**1.5)


@pytest.mark.parametrize("mechanism", ["linear", "linear(phi=elu1)", "inline", "inline(phi=exp)", "soft", "soft_norm"])
@torch.no_grad()
def test_factors_are_the_attention(mechanism: str) -> None:
    model = tiny("deit", attention=mechanism)
    for block in capture(model, image(64, 80, batch=1)[0]):
        (part,) = block.parts
        factors = part.factors()
        assert factors is not None
        left, right = (each[0] for each in factors)
        matrix = part.rows(0, torch.arange(block.tokens)).double()
        torch.testing.assert_close(left @ right.transpose(-1, -2), matrix, rtol=1e-3, atol=1e-4 * float(matrix.max()))
        count = min(matrix.shape[-1], right.shape[-1])
        values = product_values(left, right)[:, :count]
        brute = torch.linalg.svdvals(matrix)[:, :count]
        torch.testing.assert_close(values, brute, rtol=1e-3, atol=1e-4 * float(brute.max()))


@pytest.mark.parametrize("mechanism", ["soft(ratio=2)", "soft_norm(ratio=2)", "inline", "linear", "nystromformer"])
@torch.no_grad()
def test_padded_windows(mechanism: str) -> None:
    """40 px make maps of 10 and 5 tokens, which windows of 4 cover with padding."""
    model = tiny("swin", attention=mechanism, map_window=4)
    blocks = capture(model, image(40, batch=1)[0])
    assert any(part.place.key_mask is not None for block in blocks for part in block.parts)
    for block, found in zip(blocks, measure_rank(blocks), strict=True):
        matrix = block.rows(torch.arange(block.tokens)).double()
        assert found.effective == pytest.approx(effective_rank(torch.linalg.svdvals(matrix)).tolist(), rel=1e-3)
    if mechanism.startswith("soft"):
        for part, found in zip((part for block in blocks for part in block.parts), measure_newton(blocks), strict=True):
            counts = part.place.counts(part.q)
            for window in range(part.windows):  # what the mask hides changes nothing
                q, place = part.q[window : window + 1], part.place.select(slice(window, window + 1))
                other = q.masked_fill(~counts[window, None, :, None, None][0], 50.0)
                matrix, step = part.core.newton_matrix(other, place)
                errors = newton_errors(matrix[0], step[0], 20)
                own = found.errors.unflatten(0, (part.windows, -1))[window]
                torch.testing.assert_close(own, errors, rtol=1e-3, atol=1e-5)


def test_attention_to_oneself_has_full_rank() -> None:
    q = torch.zeros(20, 2, 4)
    (found,) = measure_rank([block_of("none", q, q, (4, 5))])
    assert found.effective == pytest.approx([20, 20])
    assert (found.method, found.bound) == (ROWS, 20)
    (sampled,) = measure_rank([block_of("none", q, q, (4, 5))], limit=8)
    assert sampled.effective == pytest.approx([8, 8])
    assert sampled.method == SAMPLE


def test_even_attention_has_rank_one() -> None:
    q = torch.zeros(20, 2, 4)
    for mechanism, method in (("softmax", ROWS), ("inline(residual=false)", FACTORS)):
        (found,) = measure_rank([block_of(mechanism, q, torch.randn_like(q), (4, 5))])
        assert found.effective == pytest.approx([1, 1])
        assert found.method == method


@torch.no_grad()
def test_ranks_keep_to_their_bounds() -> None:
    pictures = [image(64, 80, batch=1)[0]]
    for name in (name for name, row in MECHANISMS.items() if row.core.has_rows):
        for found in measure_rank(capture(tiny("deit", attention=name), pictures[0])):
            assert all(0 < rank <= found.bound + 1e-6 for rank in found.effective), name
    windows = tiny("swin", attention="softmax")  # block diagonal: at least one for every window
    first = measure_rank(capture(windows, pictures[0]))[0]
    assert min(first.effective) > 16 * 20 // 4 * 0.9
    study = study_rank([Subject("swin", windows, pictures)])
    assert len(study.rows) == len(study.facts["subjects"][0]["layers"])


def test_singular_values_of_matrices_that_trouble_lapack(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(3, 9, 5, dtype=torch.float64)
    expected = torch.linalg.svdvals(x)
    monkeypatch.setattr(torch.linalg, "svdvals", lambda t: torch.full((*t.shape[:-2], min(t.shape[-2:])), math.nan))
    torch.testing.assert_close(singular_values(x), expected)
    torch.testing.assert_close(singular_values(x.transpose(-1, -2)), expected)


def test_live_bytes_by_hand() -> None:
    x = torch.zeros(1000)
    with LiveBytes() as live:
        live.add(x)
        y = x + 1  # 4000 bytes more
        view = y[:10].view(2, 5)  # none
        z = y * 2  # 4000 more
        del y, view
        _ = z + 1  # y's have gone
    assert live.peak == 12000
    assert live.now == 12000


@pytest.mark.slow
def test_counting_without_data_equals_counting_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sightline.analysis.memory.BLOCKS", 2)
    for mechanism in ("softmax", "soft(landmarks=49)"):
        counted = measure_peak("a method", mechanism, 1, "forward")
        stack, x = Stack("a method", mechanism), torch.zeros(1, 784, 384)
        with LiveBytes() as live, torch.no_grad():
            live.add([*stack.parameters(), *stack.buffers(), x])
            stack(x, (28, 28))
        assert counted.peak == live.peak
        assert counted.weights < counted.peak < 2**28


@pytest.mark.slow
def test_memory_of_a_matrix_grows_with_the_square(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sightline.analysis.memory.BLOCKS", 2)
    study = study_memory((1, 2), {"softmax, matrix in memory": "softmax", "inline": "inline"})
    peaks = {(p["method"], p["mode"], p["tokens"]): p["peak"] - p["weights"] for p in study.facts["peaks"]}
    matrix = [peaks["softmax, matrix in memory", "forward", n] for n in (784, 1568)]
    assert matrix[1] > 3 * matrix[0]
    assert matrix[0] > 2 * 12 * 784 * 784 * 4  # scores and their softmax, of all heads
    linear = [peaks["inline", "forward", n] for n in (784, 1568)]
    assert 1.5 < linear[1] / linear[0] < 2.5
    assert len(study.rows) == 4
