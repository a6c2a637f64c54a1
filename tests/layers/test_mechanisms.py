"""Every attention mechanism in every family, and the options in its brackets."""

import copy
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from sightline.layers import MECHANISMS, Attention, Core, Place, Spec
from sightline.layers.mechanisms.inline import ResidualWeights
from sightline.layers.stripe_attention import StripeAttention
from sightline.layers.window_attention import WindowAttention

from ..models.tiny import CLASSES, assert_close, fresh, image, relative_error, tiny

FAMILIES = ("deit", "pvt", "swin", "cswin", "hybrid", "soft")
GRID = (3, 5)


def attention(text: str, dim: int = 12, heads: int = 3, **options: object) -> Attention:
    """An attention layer with weights that matter."""
    layer = Attention(dim, heads, Spec.parse(text), **options)  # type: ignore[arg-type]
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.4)
    return layer


def tokens(grid: tuple[int, int] = GRID, prefix: int = 0, dim: int = 12, batch: int = 2) -> Tensor:
    return torch.randn(batch, prefix + grid[0] * grid[1], dim)


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_mechanism_in_every_family(family: str, mechanism: str) -> None:
    model, x = tiny(family, attention=mechanism), image(61, 96)
    logits = model(x)
    assert logits.shape == (2, CLASSES)
    logits.square().sum().backward()
    for name, parameter in model.named_parameters():
        # Without attention, and in windows of one token, queries and keys are projected for nothing.
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    cores = [module for module in model.modules() if isinstance(module, Core)]
    assert {type(core) for core in cores} == {MECHANISMS[mechanism].core}


@pytest.mark.slow
@pytest.mark.parametrize("family", ["deit", "cswin"])
def test_mechanisms_differ(family: str) -> None:
    """One family with all tokens, one with stripes; which mechanism the others got is seen above."""
    x = image(64, 96)
    outputs = [tiny(family, attention=mechanism)(x) for mechanism in MECHANISMS]
    for i, a in enumerate(outputs):
        for b in outputs[:i]:
            assert relative_error(a, b) > 1e-3


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("prefix", [0, 2])
def test_one_signature(mechanism: str, prefix: int) -> None:
    layer = attention(mechanism, stride=16)
    x = tokens(prefix=prefix)
    assert layer(x, GRID, prefix).shape == x.shape
    batch = layer(torch.cat([x, tokens(prefix=prefix)]), GRID, prefix)
    assert_close(batch[:2], layer(x, GRID, prefix))


@pytest.mark.parametrize("mechanism", ["softmax", "linear", "inline", "inline(phi=exp)", "none"])
def test_masked_tokens_are_not_read(mechanism: str) -> None:
    layer, x = attention(mechanism), tokens()
    mask = torch.ones(2, 15, dtype=torch.bool)
    mask[0, 4:7] = mask[1, -2:] = False
    garbled = torch.where(mask[..., None], x, torch.full_like(x, 50.0))
    assert_close(layer(garbled, GRID, key_mask=mask)[mask], layer(x, GRID, key_mask=mask)[mask])
    if mechanism != "none":
        assert relative_error(layer(x, GRID)[mask], layer(x, GRID, key_mask=mask)[mask]) > 1e-3


@pytest.mark.parametrize("mechanism", ["soft", "soft_norm"])
def test_masked_tokens_are_not_read_by_landmarks(mechanism: str) -> None:
    layer, x = attention(f"{mechanism}(ratio=2)"), tokens()
    mask = torch.arange(15).expand(2, -1) % 5 < 4
    garbled = torch.where(mask[..., None], x, torch.full_like(x, 50.0))
    assert_close(layer(garbled, GRID, key_mask=mask)[mask], layer(x, GRID, key_mask=mask)[mask])


def test_no_attention_is_the_values_projected() -> None:
    layer, x = attention("none"), tokens(prefix=1)
    values = x @ layer.qkv.weight[24:].T + layer.qkv.bias[24:]
    assert_close(layer(x, GRID, 1), values @ layer.proj.weight.T + layer.proj.bias)
    assert set(dict(layer.named_parameters())) == {"qkv.weight", "qkv.bias", "proj.weight", "proj.bias"}


@pytest.mark.parametrize("grid", [(2, 3), (4, 6)], ids=str)
def test_residual_weights_are_made_from_the_context(grid: tuple[int, int]) -> None:
    layer, x, context = attention("inline"), tokens(grid), tokens(grid)
    expected = copy.deepcopy(layer).double()(x.double(), grid, context=context.double())
    assert_close(layer(x, grid, context=context).double(), expected)
    assert relative_error(layer(x, grid), layer(x, grid, context=context)) > 1e-2


def test_inline_without_residual() -> None:
    layer, bare = attention("inline"), attention("inline(residual=false)")
    assert any("residual" in name for name in layer.state_dict())
    assert not any("residual" in name for name in bare.state_dict())
    bare.load_state_dict({k: v for k, v in layer.state_dict().items() if "residual" not in k})
    x = tokens(prefix=1)
    assert_close(bare(x, GRID, 1)[:, 0], layer(x, GRID, 1)[:, 0])  # the class token has no neighbours
    assert relative_error(bare(x, GRID, 1)[:, 1:], layer(x, GRID, 1)[:, 1:]) > 1e-2


def test_residual_weights_are_a_grouped_mlp_of_the_mean() -> None:
    layer, x = ResidualWeights(12, 3), tokens()
    mean = x.mean(1).unsqueeze(-1)
    assert_close(layer(x), layer.fc2(torch.nn.functional.gelu(layer.fc1(mean))).reshape(2, 12, 3, 3))
    mask = torch.arange(15).expand(2, -1) < 9
    assert_close(layer(x, mask), layer(x[:, :9]))


@pytest.mark.parametrize("text", ["inline", "inline(residual=false)"])
@pytest.mark.parametrize("prefix", [0, 1])
@pytest.mark.parametrize("qkv_bias", [True, False])
@pytest.mark.parametrize("grid", [GRID, (1, 11), (9, 8)], ids=str)
def test_inline_from_tokens_is_inline(text: str, prefix: int, qkv_bias: bool, grid: tuple[int, int]) -> None:
    """float32 on a CPU takes a shorter way where there are more tokens than channels, float64 never does."""
    layer, x = attention(text, qkv_bias=qkv_bias), tokens(grid, prefix)
    leaves = [x.requires_grad_(), *layer.parameters()]
    out = layer(x, grid, prefix)
    gradients = torch.autograd.grad(out, leaves, torch.cos(torch.arange(out.numel())).view_as(out))
    wide = copy.deepcopy(layer).double()
    leaves = [x.detach().double().requires_grad_(), *wide.parameters()]
    expected = wide(leaves[0], grid, prefix)
    cotangent = torch.cos(torch.arange(out.numel())).view_as(out).double()
    assert_close(out.double(), expected)
    for got, want in zip(gradients, torch.autograd.grad(expected, leaves, cotangent), strict=True):
        assert_close(got.double(), want, 2e-5)


@pytest.mark.parametrize("part", ["core", "qkv"])
def test_no_short_cut_passes_by_a_hook(part: str) -> None:
    """What looks inside attention hooks the core; with as many tokens it would not be called."""
    layer, x = attention("inline"), tokens((9, 8))
    expected, seen = layer(x, (9, 8)), []
    getattr(layer, part).register_forward_hook(lambda *_: seen.append(part))
    assert_close(layer(x, (9, 8)), expected)
    assert seen == [part]


@pytest.mark.parametrize("hook", ["register_full_backward_pre_hook", "register_full_backward_hook"])
def test_hooks_on_gradients_see_the_core_too(hook: str) -> None:
    layer, x = attention("inline"), tokens((9, 8)).requires_grad_()
    seen: list[str] = []
    getattr(layer.core, hook)(lambda *_: seen.append(hook))
    layer(x, (9, 8)).sum().backward()
    assert seen == [hook]


@pytest.mark.parametrize("phi", ["identity", "relu", "leaky_relu", "elu1", "exp", "relu_affine"])
@pytest.mark.parametrize("mechanism", ["linear", "inline"])
def test_feature_maps(mechanism: str, phi: str) -> None:
    layer, x = attention(f"{mechanism}(phi={phi})"), tokens()
    layer(x, GRID).square().sum().backward()
    affine = [name for name in layer.state_dict() if "feature_map" in name]
    assert len(affine) == (2 if phi == "relu_affine" else 0)
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in layer.parameters())
    default = attention(mechanism)
    default.load_state_dict({k: v for k, v in layer.state_dict().items() if k not in affine})
    same = phi == {"linear": "relu", "inline": "identity"}[mechanism]
    assert (relative_error(layer(x, GRID), default(x, GRID)) < 1e-6) == same


def test_affine_map_starts_as_relu() -> None:
    affine = Attention(12, 3, Spec.parse("linear(phi=relu_affine)"))
    plain = Attention(12, 3, Spec.parse("linear"))
    plain.load_state_dict({k: v for k, v in affine.state_dict().items() if "feature_map" not in k})
    x = tokens()
    assert_close(affine(x, GRID), plain(x, GRID))


def test_soft_options() -> None:
    core = attention("soft(ratio=3,iterations=6)").core
    assert (core.ratio, core.iterations, core.landmarks.conv.kernel_size) == (3, 6, (3, 3))
    for stride, ratio, kernel in ((4, 8, 9), (8, 4, 5), (16, 2, 3), (32, 1, 3), (64, 1, 3)):
        core = attention("soft_norm", stride=stride).core
        assert (core.ratio, core.iterations, core.local.conv.kernel_size) == (ratio, 20, (kernel, kernel))
    assert (attention("soft").core.normalized, attention("soft_norm").core.normalized) == (False, True)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("soft_max", "'softmax'"),  # the nearest name
        ("Inline", "'inline'"),
        ("inline(phj=relu)", "'phj'"),
        ("softmax(phi=relu)", "'phi'"),
        ("inline(residual=1)", "residual=1 "),
        ("inline(residual)", "residual=''"),
        ("soft(ratio=2.5)", "ratio=2.5"),
        ("soft(iterations=many)", "iterations='many'"),
        ("linear(phi=3)", "phi=3 "),
        ("linear(phi=tanh)", "phi='tanh'"),
        ("inline(phi)", "phi=''"),
        ("inline(phi=relu,phi=exp)", "phi "),
        ("soft(ratio=-1)", "ratio=-1"),
        ("soft_norm(iterations=0)", "iterations=0"),
    ],
)
@pytest.mark.parametrize("family", ["deit", "swin"])
def test_rejected_in_one_line(family: str, text: str, named: str) -> None:
    with pytest.raises(ValueError, match=r"\A[^\n]+\Z") as caught:
        fresh(family, attention=text)
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("family", "wrong", "named"),
    [
        ("deit", {"num_heads": 3}, "num_heads=3"),
        ("deit", {"depths": (2, 2)}, "depths=(2, 2)"),
        ("pvt", {"embed_dims": (8, 16)}, "embed_dims=(8, 16)"),
        ("pvt", {"num_heads": 2}, "num_heads=2"),
        ("cswin", {"num_heads": (2, 2, 1, 4)}, "num_heads=1"),
        ("pvt", {"attention": "soft", "sr_ratios": (2, 1, 1, 1)}, "sr_ratios"),
    ],
    ids=str,
)
def test_wrong_shapes(family: str, wrong: dict, named: str) -> None:
    with pytest.raises(ValueError, match=r"\A[^\n]+\Z") as caught:
        fresh(family, **wrong)
    assert named in str(caught.value)


@pytest.mark.parametrize(
    "kind", [Attention, partial(WindowAttention, window=2, shift=True), partial(StripeAttention, stripe=1)]
)
def test_attention_takes_the_name_of_a_mechanism(kind: Callable[..., nn.Module]) -> None:
    torch.manual_seed(0)
    named = kind(12, 2, "inline(phi=relu)")
    torch.manual_seed(0)
    parsed = kind(12, 2, Spec.parse("inline(phi=relu)"))
    x = tokens()
    assert torch.equal(named(x, GRID), parsed(x, GRID))
    with pytest.raises(ValueError, match="inlin"):
        kind(12, 2, "inlin")


COMPILED = {
    "softmax": Attention,
    "inline": Attention,
    "soft_norm(ratio=2,iterations=2)": Attention,
    "enhanced": Attention,
    "performer": Attention,
    "nystromformer(landmarks=4,iterations=1)": Attention,
    "mala": Attention,
    "ttt(project=true,key_norm=true,kernel=3)": Attention,
    "inline(key_norm=true,temperature=true,head_map=true)": Attention,
    "inline(agents=4,softmax_prefix=true)": Attention,
    "inline(agents=4,softmax_prefix=true,window=2)": Attention,
    "softmax in windows": partial(WindowAttention, window=2, shift=True),
    "inline in windows": partial(WindowAttention, window=2, shift=True),
    "softmax in stripes": partial(StripeAttention, stripe=2),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", COMPILED)
def test_attention_compiles_and_exports_whole(case: str) -> None:
    layer, prefix = COMPILED[case](12, 2, case.partition(" ")[0]).eval(), int(" " not in case)
    x = tokens(prefix=prefix)
    parameters = list(layer.parameters())
    want = layer(x, GRID, prefix)
    got = torch.compile(layer, fullgraph=True, backend="aot_eager")(x, GRID, prefix)
    assert_close(got, want)
    wanted, found = (torch.autograd.grad(out.square().sum(), parameters) for out in (want, got))
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5 * (1 + b.abs().max().item()))
    exported = torch.export.export(layer, (x, GRID, prefix))
    assert_close(exported.module()(x, GRID, prefix), want)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mechanism", [*(name for name in MECHANISMS if not MECHANISMS[name].core.shared_qk), "inline(phi=relu_affine)"]
)
def test_spatial_reduction(mechanism: str) -> None:
    """At a size that the ratios do not divide."""
    model = tiny("pvt", attention=mechanism, sr_ratios=(8, 4, 2, 1))
    model(image(61, 96)).square().sum().backward()
    reducers = [name for name in model.state_dict() if name.endswith("attn.sr.weight")]
    assert len(reducers) == 3
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None or mechanism == "none", name
        if mechanism != "none":
            assert parameter.grad.isfinite().all(), name
            assert parameter.grad.abs().max() > 0, name


def test_spatial_reduction_by_hand() -> None:
    """Keys and values from the reduced map, the residual from the full one."""
    layer, x, grid = attention("inline", sr_ratio=2), tokens((4, 6)), (4, 6)
    heads = (3, 4)
    q, _, v = (t.unflatten(-1, heads) for t in layer.qkv(x).chunk(3, -1))
    maps = layer.sr(x.transpose(1, 2).reshape(2, 12, *grid)).flatten(2).transpose(1, 2)
    _, k_, v_ = (t.unflatten(-1, heads) for t in layer.qkv(layer.sr_norm(maps)).chunk(3, -1))
    scores = torch.einsum("bnhd,bmhd->bhnm", q, k_) / 2
    weights = (scores - scores.mean(-1, keepdim=True) + 1) / k_.shape[1]
    mixed = torch.einsum("bhnm,bmhd->bnhd", weights, v_).flatten(2)
    kernels = layer.core.residual(x).reshape(24, 1, 3, 3)
    local = v.flatten(2).transpose(1, 2).reshape(1, 24, *grid)
    local = nn.functional.conv2d(local, kernels, padding=1, groups=24).reshape(2, 12, 24).transpose(1, 2)
    assert_close(layer(x, grid), layer.proj(mixed + local))


def test_spatial_reduction_is_of_maps_only() -> None:
    layer, x = attention("softmax", sr_ratio=2), tokens()
    with pytest.raises(ValueError, match="leave sr_ratios at 1"):
        layer(tokens(prefix=1), GRID, 1)
    with pytest.raises(ValueError, match="leave sr_ratios at 1"):
        layer(x, GRID, key_mask=torch.ones(2, 15, dtype=torch.bool))


def test_softmax_reduces_by_default() -> None:
    ratios = [
        stage.blocks[0].attn.sr.stride[0] if stage.blocks[0].attn.sr else 1
        for stage in tiny("pvt", attention="softmax").stages
    ]
    assert ratios == [8, 4, 2, 1]
    assert all(stage.blocks[0].attn.sr is None for stage in tiny("pvt").stages)


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", [name for name in MECHANISMS if name != "softmax"])
def test_narrow_stripes(mechanism: str) -> None:
    model, x = tiny("cswin", attention=mechanism, map_stripes=(3, 2, 1, 0)), image(61, 96)
    model(x).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert [len(stage.blocks[0].attn.branches) for stage in model.stages] == [2, 2, 2, 1]


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", [name for name in MECHANISMS if name != "softmax"])
def test_map_windows(mechanism: str) -> None:
    model = tiny("swin", attention=mechanism, map_window=3, depths=(2, 2, 1, 1))
    model(image(61, 96)).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert [block.attn.shift() for block in model.stages[0].blocks] == [0, 1]


def test_residual_weights_of_masked_tokens_do_not_overflow() -> None:
    weights = ResidualWeights(8, 2).half()
    tokens = torch.full((1, 70_000, 8), 25.0).half()
    mask = torch.ones(1, 70_000, dtype=torch.bool)
    mask[:, ::7] = False
    tokens[:, ::7] = float("inf")
    want = weights.float()(torch.full((1, 1, 8), 25.0))
    assert_close(weights.half()(tokens, mask).float(), want, 1e-2)


@pytest.mark.parametrize("name", ["soft", "soft_norm"])
def test_a_fixed_number_of_landmarks(name: str) -> None:
    core = Spec.parse(f"{name}(landmarks=4)").build(16, 2, 16)
    follows = Spec.parse(name).build(16, 2, 16)
    follows.load_state_dict(core.state_dict())
    for grid, same in (((4, 4), True), ((8, 6), False), ((2, 2), False), ((9, 1), False)):
        q = torch.randn(2, grid[0] * grid[1], 2, 8)
        points = core.landmarks(q, grid)
        assert points.shape == (2, 4, 2, 8)
        assert (follows.landmarks(q, grid).shape == points.shape) == same
        if same:  # as many landmarks as the ratio gives: nothing is pooled
            assert torch.equal(points, follows.landmarks(q, grid))
        assert core(q, q, q, Place(grid, q.flatten(2))).isfinite().all()
    with pytest.raises(ValueError, match="landmarks=5"):
        Spec.parse(f"{name}(landmarks=5)").build(16, 2, 16)
