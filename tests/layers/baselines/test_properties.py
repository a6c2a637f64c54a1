"""The property that defines each baseline."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sightline import backend
from sightline.layers import Place, Spec
from sightline.layers.mechanisms.baselines.focused import focus
from sightline.layers.mechanisms.baselines.nystromformer import pseudo_inverse
from sightline.layers.mechanisms.baselines.performer import orthogonal_gaussians
from sightline.layers.mechanisms.baselines.ttt import clipped
from sightline.layers.mechanisms.landmarks import segment_means

from ...ops.brute_force import assert_close, attend, products, softmax_weights, tokens
from ...ops.cases import DEVICE
from .definitions import segments

DIM, HEADS, GRID = 12, 2, (4, 4)


def build(text: str) -> Any:
    return Spec.parse(text).build(DIM, HEADS, 16).double()


def qkv(n: int = 16) -> list[Tensor]:
    return [tokens(2, n, HEADS, DIM // HEADS) for _ in range(3)]


def place(q: Tensor, grid: tuple[int, int] = GRID, prefix: int = 0, key_mask: Tensor | None = None) -> Place:
    return Place(grid, q.flatten(2), prefix, key_mask)


def estimates(features: int, draws: int, q: Tensor, k: Tensor) -> Tensor:
    """phi(q_i) . phi(k_j) of Performer, (draws, B, H, N, M)."""
    core, found = build(f"performer(features={features})"), []
    for seed in range(draws):
        core.redraw(seed)
        fq, fk = core.exponents(q).exp(), core.exponents(k).exp()
        found.append(products(fq, fk) / features)
    return torch.stack(found)


@pytest.mark.slow
def test_performer_is_unbiased_and_its_variance_falls_with_the_features() -> None:
    q, k = (0.5 * tokens(1, 5, HEADS, DIM // HEADS) for _ in range(2))
    exact = torch.exp(products(q, k) * (DIM // HEADS) ** -0.5)
    few, many = (estimates(features, 1500, q, k) for features in (6, 24))
    for found in (few, many):
        error = found.std(0) / 1500**0.5
        assert ((found.mean(0) - exact).abs() < 4.5 * error).all()
        assert ((found.mean(0) - exact).abs() / exact).max() < 0.1
    assert (few.var(0) / many.var(0)).mean() == pytest.approx(4, rel=0.25)


def test_performer_tends_to_softmax() -> None:
    q, k, v = qkv()
    q, k = q / 2, k / 2
    want = attend(softmax_weights(q, k), v)
    errors = [(build(f"performer(features={m})")(q, k, v, place(q)) - want).norm() / want.norm() for m in (16, 4096)]
    assert errors[1] < 0.1 < errors[0]


def test_random_features_are_orthogonal_gaussians() -> None:
    w = orthogonal_gaussians(20, 8, 3)
    for block in (w[:8], w[8:16], w[16:]):
        gram = block @ block.T
        assert_close(gram, torch.diag(gram.diagonal()), 1e-12)
    draws = torch.stack([orthogonal_gaussians(8, 8, seed) for seed in range(800)])
    assert draws.mean(0).abs().max() < 0.15
    assert (draws.var(0) - 1).abs().max() < 0.25
    assert draws.square().sum(-1).var() == pytest.approx(2 * 8, rel=0.15)  # of chi-squared with 8 degrees


def test_performer_draws_by_its_seed_and_keeps_them_in_the_state() -> None:
    core, q = build("performer(features=9)"), qkv()[0]
    assert core.state_dict()["projection"].shape == (9, DIM // HEADS)
    assert torch.equal(core.projection, build("performer(features=9)").projection)
    other = build("performer(features=9,seed=1)")
    before = other(q, q, q, place(q))
    assert not torch.equal(before, core(q, q, q, place(q)))
    core.load_state_dict(other.state_dict())
    assert torch.equal(core(q, q, q, place(q)), before)
    core.redraw(0)
    assert not torch.equal(core(q, q, q, place(q)), before)
    assert build("performer").projection.shape[0] == math.ceil(6 * math.log(6))
    assert not list(core.parameters())


def test_performer_bears_large_tokens() -> None:
    """Where a naive exponential of any feature would overflow or vanish, in float32."""
    q, k, v = (30 * t.float() for t in qkv())
    core = build("performer").float()
    out = core(q, k, v, place(q))
    assert out.isfinite().all()
    rows = core.rows(q, k, torch.arange(16), place(q))
    assert_close(rows.sum(-1), torch.ones(2, HEADS, 16), 1e-5)


def smooth(x: Tensor) -> Tensor:
    """Tokens that resemble their neighbours, as segments ask for."""
    return 0.3 * x.cumsum(1)


def test_nystromformer_tends_to_softmax_as_landmarks_tend_to_tokens() -> None:
    q, k, v = qkv(24)
    q, k = (smooth(t) for t in (q + k, k))
    want = attend(softmax_weights(q, k), v)
    errors = []
    for count in (2, 6, 12, 24, 49):
        core = build(f"nystromformer(landmarks={count},iterations=30)")
        errors.append(((core(q, k, v, place(q, (4, 6))) - want).norm() / want.norm()).item())
    assert errors[0] > errors[1] > errors[2] > 1e-3
    assert max(errors[3:]) < 1e-8


def test_segments_of_any_number_of_tokens() -> None:
    x = tokens(1, 1, 11, 3)
    for number in (1, 2, 3, 4, 7, 11):
        means, some = segment_means(x, torch.ones(1, 11, dtype=torch.bool), number)
        assert_close(means[0, 0], segments(x[0, 0], number), 1e-12)
        assert some.all()
    means, some = segment_means(x, torch.arange(11)[None] % 5 == 0, 4)  # three tokens for four segments
    assert some.tolist() == [[True, True, True, False]]
    assert_close(means[0, 0, :3], x[0, 0, ::5], 1e-12)


def test_pseudo_inverse() -> None:
    wide = torch.softmax(3 * tokens(5, 6, 6), -1)
    assert_close(pseudo_inverse(wide, 40), torch.linalg.pinv(wide), 1e-8)
    wide[:, 4], wide[:, :, 2] = 0, 0  # landmarks without tokens
    assert_close(pseudo_inverse(wide, 40), torch.linalg.pinv(wide), 1e-8)
    usual = torch.softmax(tokens(5, 6, 6) + 6 * torch.eye(6, dtype=torch.float64), -1)
    assert_close(usual @ pseudo_inverse(usual, 6) @ usual, usual, 1e-3)  # six steps, as published


@pytest.mark.parametrize("prefix", [0, 1])
def test_linformer_is_exact_at_full_rank(prefix: int) -> None:
    core, (q, k, v) = build("linformer(rank=16,side=4)"), qkv(16 + prefix)
    for table in (core.key_table, core.value_table):
        table.data.copy_(torch.eye(16).view(16, 4, 4))
    assert_close(core(q, k, v, place(q, prefix=prefix)), attend(softmax_weights(q, k), v), 1e-12)
    other = build("linformer(rank=16,side=4)")
    assert (other(q, k, v, place(q, prefix=prefix)) - attend(softmax_weights(q, k), v)).norm() > 0.1


def test_linformer_resamples_to_other_grids() -> None:
    """A smooth image has the same projected keys at every resolution."""
    core = build("linformer(rank=3,side=8,share=true)")
    assert core.value_table is None
    assert [build(f"linformer(side={s})").key_table.shape[1:] for s in (0, 5)] == [(14, 14), (5, 5)]
    core.key_table.data.copy_(F.interpolate(tokens(1, 3, 2, 2), size=(8, 8), mode="bicubic")[0])
    smooth = tokens(1, DIM, 2, 2)
    outputs = []
    for grid in ((8, 8), (16, 16), (24, 16)):
        x = F.interpolate(smooth, size=grid, mode="bilinear").flatten(2).transpose(1, 2).unflatten(-1, (HEADS, -1))
        q = torch.ones(1, x.shape[1], HEADS, DIM // HEADS, dtype=torch.float64)
        outputs.append(core(q, x, x, place(q, grid))[:, 0])
    for found in outputs[1:]:
        assert_close(found, outputs[0], 0.1)


def test_hydra_is_linear_attention_with_as_many_heads_as_channels() -> None:
    core, (q, k, v) = build("hydra"), qkv()
    fq, fk = (F.normalize(t.flatten(2), dim=-1).unsqueeze(-1) for t in (q, k))  # B N C 1
    want = attend(torch.einsum("bnhd,bmhd->bhnm", fq, fk), v.flatten(2).unsqueeze(-1))
    assert_close(core(q, k, v, place(q)), want.view_as(q), 1e-12)
    rows = core.rows(q, k, torch.arange(16), place(q))
    assert rows.shape == (2, DIM, 16, 16)
    assert (rows < 0).any()


def test_efficient_rows_are_a_distribution() -> None:
    core, (q, k, _) = build("efficient"), qkv()
    mask = torch.arange(16).expand(2, -1) % 3 > 0
    for key_mask in (None, mask):
        rows = core.rows(q, k, torch.arange(16), place(q, key_mask=key_mask))
        assert_close(rows.sum(-1), torch.ones(2, HEADS, 16), 1e-12)
        assert rows.min() >= 0
    assert_close(core(q, k, torch.ones_like(k), place(q)), torch.ones_like(q), 1e-12)


def test_linear_angular_is_the_first_terms_of_the_angular_kernel() -> None:
    """1 - angle / pi less its linear terms is of third order in the cosine; no weight is negative."""
    core = build("linear_angular(kernel=0)")
    angle = torch.linspace(0, math.pi, 181, dtype=torch.float64)
    k = torch.stack([angle.cos(), angle.sin(), *[torch.zeros(181).double()] * 4], -1)[None, :, None]
    k = (k * torch.rand(181, 1, 1)).expand(1, 181, HEADS, 6)  # of any length
    q = torch.zeros_like(k)
    q[..., 0] = 3.0
    (row,) = core.rows(q, k, torch.tensor([0]), place(q, (1, 181)))[0, :1, 0]
    kernel = row / row[90] / 2  # a half at a right angle
    cosine = angle.cos()
    assert_close(kernel, 0.5 + cosine / math.pi, 1e-10)
    rest = (1 - angle / math.pi) - kernel
    inside = cosine.abs() < 0.5
    assert (rest[inside].abs() <= cosine[inside].abs() ** 3 / math.pi / 4).all()
    assert kernel.min() > 0.18


def test_enhanced_is_relu_attention_of_the_tokens_and_of_aggregated_ones() -> None:
    q, k, v = qkv()
    plain = build("linear")(q, k, v, place(q))
    assert torch.equal(build("enhanced(scales=0)")(q, k, v, place(q)), plain)
    core = build("enhanced")
    assert [s.parts[0].depthwise.kernel_size for s in build("enhanced(scales=3)").scales] == [(5, 5), (7, 7), (9, 9)]
    for part in core.scales[0].parts:  # the neighbourhood is the token alone
        part.depthwise.weight.data.zero_()[..., 2, 2] = 1
        part.pointwise.weight.data.copy_(torch.eye(6).repeat(HEADS, 1)[..., None, None])
    core.scales[0].fuse.weight.data.copy_(2 * torch.eye(DIM))
    assert_close(core(q, k, v, place(q)), 3 * plain, 1e-12)
    core.scales[0].parts[2].depthwise.weight.data.fill_(1)  # values: sums of 5 x 5 neighbours
    summed = F.avg_pool2d(
        v.flatten(2).transpose(1, 2).unflatten(-1, GRID), 5, 1, 2, divisor_override=1
    ).flatten(2).transpose(1, 2).unflatten(-1, v.shape[2:])  # fmt: skip
    want = plain + 2 * build("linear")(q, k, summed, place(q))
    assert_close(core(q, k, v, place(q)), want, 1e-12)


def test_focus_keeps_lengths_and_sharpens_directions() -> None:
    x = tokens(200, 8).abs() * torch.logspace(-8, 8, 200, dtype=torch.float64)[:, None]
    before = (x / x.norm(dim=-1, keepdim=True)).amax(-1)
    for power in (1, 2, 3, 8):
        sharp = focus(x, power)
        assert_close(sharp.norm(dim=-1) / x.norm(dim=-1), torch.ones(200), 1e-12)
        largest = (sharp / sharp.norm(dim=-1, keepdim=True)).amax(-1)
        assert (largest >= before - 1e-12).all()
        assert torch.equal(sharp.argmax(-1), x.argmax(-1))
        before = largest
    assert_close(focus(x, 1), x, 1e-12)
    assert (focus(torch.zeros(2, 4), 3) == 0).all()
    a, b = torch.tensor([[2.0, 1.0]]), torch.tensor([[1.0, 2.0]])  # other largest channels: pushed apart
    assert (focus(a, 3) * focus(b, 3)).sum() < 0.7 * (a * b).sum()


def test_focused_attention_is_sharper_than_relu_attention() -> None:
    q, k, _ = qkv(64)
    plain = build("linear").rows(q, k, torch.arange(64), place(q, (8, 8)))
    sharp = build("focused").rows(q, k, torch.arange(64), place(q, (8, 8)))
    assert (sharp.amax(-1) > plain.amax(-1)).double().mean() > 0.9


def test_mala_sharpens_with_the_length_of_the_query() -> None:
    q, k, v = qkv()
    q, k = 2 * q, 2 * k
    core = build("mala")
    sizes = []
    for length in (0.5, 1.0, 2.0, 4.0):
        rows = core.rows(length * q.abs(), k, torch.arange(16), place(q))
        assert_close(rows.sum(-1), torch.ones(2, HEADS, 16), 1e-12)
        sizes.append(float(rows.var(-1).mean()))
    assert sizes == sorted(sizes)
    assert sizes[-1] > 4 * sizes[0]
    tiny_scores = core(q - 60, k - 60, v, place(q))  # z at its least value: rows still sum to one
    assert_close(tiny_scores, v.mean(1, keepdim=True).expand_as(v), 1e-9)


def test_mala_runs_by_the_kernels_of_inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through Triton's interpreter on a CPU, where `triton` never falls back."""
    core = Spec.parse("mala").build(16, 2, 16)
    leaves = [torch.randn(2, 13, 2, 8, device=DEVICE, requires_grad=True) for _ in range(3)]
    found: list[list[Tensor]] = []
    monkeypatch.setattr(backend, "requested", lambda: "triton" if found else "torch")
    for _ in range(2):
        out = core(*leaves, place(leaves[0], (3, 4), 1))
        found.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    for one, other in zip(*found, strict=True):
        assert_close(other, one, 1e-4)


def test_mala_in_float16_bears_keys_far_below_zero() -> None:
    q, k, v = (t.half() for t in qkv())
    got, want = (build("mala").to(t)(q.to(t), (k - 12).to(t), v.to(t), place(q)) for t in (torch.half, torch.double))
    assert_close(got, want, 5e-3)


def test_rala_weighs_keys_by_the_mean_query() -> None:
    q, k, v = qkv()
    q = q + 3  # all queries ask for large keys
    k[:, 5] += 4
    rala, plain = (build(text).rows(q, k, torch.arange(16), place(q)) for text in ("rala", "linear(phi=elu1)"))
    assert_close(rala.sum(-1), torch.ones(2, HEADS, 16), 1e-12)
    assert (rala[..., 5] > 2 * plain[..., 5]).all()
    even = torch.zeros_like(k)  # keys that are all the same: no shares to give
    assert_close(build("rala")(q, even, v, place(q)), v.mean(1, keepdim=True).expand_as(v), 1e-12)
    gated = build("rala(gate=true)")
    assert torch.equal(gated(q, k, v, place(q)), build("rala")(q, k, v, place(q)))  # one at first
    gated.gate_bias.data.fill_(2)
    assert_close(gated(q, k, v, place(q)), 2 * build("rala")(q, k, v, place(q)), 1e-12)


def test_hedgehog_is_spiky_and_bears_large_tokens() -> None:
    q, k, v = qkv()
    core = build("hedgehog")
    assert torch.equal(core.query_map, torch.eye(6, dtype=q.dtype).repeat(HEADS, 1, 1))
    sharp, blunt = (core.rows(t * q, t * q, torch.arange(16), place(q)).diagonal(dim1=2, dim2=3) for t in (4, 0.5))
    assert sharp.mean() > 1.5 * blunt.mean()  # a token finds itself
    large = [30 * t.float() for t in (q, k, v)]
    rows = core.float().rows(*large[:2], torch.arange(16), place(q))
    assert core(*large, place(q)).isfinite().all()
    assert_close(rows.sum(-1), torch.ones(2, HEADS, 16), 1e-5)


@pytest.mark.parametrize("text", ["ttt", "ttt(project=true)", "ttt(project=true,key_norm=true,kernel=3)"])
def test_ttt_starts_from_the_values_of_the_image_and_learns_them(text: str) -> None:
    q, k, v = qkv()
    core = build(text)
    assert (core(q, k, 0 * v, place(q)) == 0).all()
    assert core(q, k, v, place(q)).abs().max() > 1e-3
    mixed = core(q, k, 2 * v, place(q)) / core(q, k, v, place(q))
    assert not torch.allclose(mixed, torch.full_like(mixed, 2.0))  # not linear in the values: no matrix of weights
    before, after = ((core(k, k, t * v, place(q)) * v).sum() for t in (0, 1))
    assert after > before  # one step down the loss
    for parameter in core.parameters():
        assert torch.autograd.grad(core(q, k, v, place(q)).square().sum(), parameter)[0].abs().max() > 0
    gradient = tokens(2, 3, 4, 4) * 100
    assert (clipped(gradient).norm(dim=-2) < 1).all()
    assert (clipped(0 * gradient) == 0).all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("linformer(rank=0)", "rank=0"),
        ("performer(features=-1)", "features=-1"),
        ("nystromformer(landmarks=0)", "landmarks=0"),
        ("nystromformer(kernel=4)", "kernel=4"),
        ("linear_angular(kernel=-1)", "kernel=-1"),
        ("enhanced(kernel=0)", "kernel=0"),
        ("enhanced(scales=-1)", "scales=-1"),
        ("focused(power=0)", "power=0"),
        ("focused(kernel=2)", "kernel=2"),
        ("hedgehog(kernel=2)", "kernel=2"),
        ("rala(gate=1)", "gate=1"),
        ("mala(power=2)", "'power'"),
        ("ttt(kernel=-1)", "kernel=-1"),
        ("focussed", "did you mean 'focused'?"),
    ],
)
def test_rejected_in_one_line(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=r"\A[^\n]+\Z") as caught:
        build(text)
    assert message in str(caught.value)
