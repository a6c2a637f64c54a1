"""Parts of SOFT's layers: the kinds of landmarks, and the stem with its norms folded for inference."""

from functools import partial

import pytest
import torch
from timm.layers import BlurPool2d
from torch import nn

from sightline.layers.blocks import TanhMlp
from sightline.layers.core import Place
from sightline.layers.mechanisms.landmarks import KINDS, Landmarks, scrambled
from sightline.layers.patch import ConvBNEmbed, to_map
from sightline.layers.spec import Spec
from sightline.ops.activated import activated_linear

GRID = (4, 6)


def _tokens() -> torch.Tensor:
    return torch.randn(2, 24, 3, 8, dtype=torch.float64)


def test_pooled_landmarks_are_the_means_of_patches() -> None:
    q = _tokens()
    patches = q.view(2, 2, 2, 3, 2, 3, 8).mean((2, 4)).flatten(1, 2)
    torch.testing.assert_close(Landmarks(8, 2, kind="pool")(q, GRID, 0.5), 0.5 * patches)


def test_first_landmarks_are_the_first_tokens() -> None:
    q = _tokens()
    assert torch.equal(Landmarks(8, 2, kind="first")(q, GRID, 0.5), 0.5 * q[:, :6])


def test_random_landmarks_are_different_tokens_and_always_the_same() -> None:
    q = _tokens()
    chosen = Landmarks(8, 2, kind="random")(q, GRID)
    places = [(q[0] == landmark).flatten(1).all(1).nonzero().item() for landmark in chosen[0]]
    assert len(set(places)) == 6
    assert places != list(range(6))
    assert torch.equal(chosen, Landmarks(8, 2, kind="random")(q, GRID))


@pytest.mark.parametrize("count", [1, 2, 49, 1000, 65536])
def test_no_two_places_are_scrambled_alike(count: int) -> None:
    assert len(scrambled(torch.arange(count), count).unique()) == count


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_attends(kind: str) -> None:
    core = Spec.parse(f"soft_norm(landmark={kind},ratio=2)").build(24, 3, 16)
    q = torch.randn(2, 25, 3, 8, requires_grad=True)
    out = core(q, q, q, Place(GRID, q.flatten(2), 1))
    assert out.shape == q.shape
    assert torch.autograd.grad(out.square().sum(), q)[0].isfinite().all()


@pytest.mark.parametrize("ratio", [2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_padding_of_a_map_changes_nothing(kind: str, ratio: int) -> None:
    """A map of 4 x 6 alone, and in the corner of 8 x 8 with a mask; its edge cuts patches of four."""
    core = Spec.parse(f"soft(landmark={kind},ratio={ratio})").build(24, 3, 16).double().eval()
    small = torch.randn(1, 24, 3, 8, dtype=torch.float64)
    large = torch.full((1, 8, 8, 3, 8), 1e3, dtype=torch.float64)
    large[:, :4, :6] = small.unflatten(1, GRID)
    mask = torch.zeros(1, 8, 8, dtype=torch.bool)
    mask[:, :4, :6] = True
    large, mask = large.flatten(1, 2), mask.flatten(1)
    want = core(small, small, small, Place(GRID, small.flatten(2)))
    got = core(large, large, large, Place((8, 8), large.flatten(2), key_mask=mask))
    torch.testing.assert_close(got[mask], want[0])
    rows = core.rows(large, large, mask[0].nonzero().flatten(), Place((8, 8), large.flatten(2), key_mask=mask))
    alone = core.rows(small, small, torch.arange(24), Place(GRID, small.flatten(2)))
    torch.testing.assert_close(rows[..., mask[0]], alone)


@pytest.mark.parametrize("kind", ["random", "first"])
def test_more_landmarks_than_tokens_are_rejected(kind: str) -> None:
    with pytest.raises(ValueError, match="landmark=pool"):
        Landmarks(8, 1, side=5, kind=kind)(_tokens(), GRID)


def test_norms_folded_into_the_stem() -> None:
    stem = ConvBNEmbed(3, [8, 8, 16], [2, 1, 2]).eval().double()
    for norm in stem.modules():
        if isinstance(norm, nn.BatchNorm2d):
            for tensor in (norm.weight.data, norm.bias.data, norm.running_mean):
                tensor.normal_()
            norm.running_var.uniform_(0.5, 2)
    x = torch.randn(2, 3, 33, 40, dtype=torch.float64)
    torch.testing.assert_close(stem._folded(x), stem.proj(x))
    torch.testing.assert_close(stem._by_layers(x), stem.proj(x))


@pytest.mark.parametrize("size", [(8, 8), (7, 10), (1, 1)])
def test_blur_instead_of_a_stride(size: tuple[int, int]) -> None:
    embed = ConvBNEmbed(3, [8, 6], [2, 2], blur=True)
    x = torch.randn(2, 3, *size)
    tokens, grid = embed(x)
    wanted = BlurPool2d(6, pad_mode="constant")(embed.proj(x))
    assert grid == tuple(-(-side // 4) for side in size) == wanted.shape[2:]
    torch.testing.assert_close(to_map(tokens, grid), wanted)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_stem_by_layers_has_the_gradients_of_convolutions(channels: int) -> None:
    """Few channels go through a product of patches; four are more than it takes."""
    stem = ConvBNEmbed(channels, [8, 16], [2, 2]).double().train()
    x = torch.randn(2, channels, 21, 30, dtype=torch.float64, requires_grad=True)
    inputs = [x, *stem.parameters()]
    want, got = stem.proj(x), stem._by_layers(x)
    torch.testing.assert_close(got, want)
    grad = torch.randn_like(want)
    for a, b in zip(*(torch.autograd.grad(out, inputs, grad) for out in (got, want)), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("gelu", [True, False])
def test_activated_linear(gelu: bool) -> None:
    x, weight, bias = (torch.randn(*shape, dtype=torch.float64) for shape in ((2, 5, 8), (6, 8), (6,)))
    product = x @ weight.T + bias
    want = nn.functional.gelu(product, approximate="tanh") if gelu else product.relu()
    torch.testing.assert_close(activated_linear(x, weight, bias, gelu=gelu), want)
    inputs = tuple(t.float() for t in (x, weight, bias))
    torch.library.opcheck(torch.ops.sightline.activated_linear.default, (*inputs, gelu))
    if torch.cuda.is_available():
        with torch.no_grad():
            got = activated_linear(*(t.cuda().bfloat16() for t in inputs), gelu=gelu)
        assert (got.double().cpu() - want).norm() < 1e-2 * want.norm()


def test_mlp_calls_what_stands_for_its_first_layer() -> None:
    mlp, x = TanhMlp(8, 16, act_layer=partial(nn.GELU, approximate="tanh")), torch.randn(2, 5, 8)
    expected, seen = mlp(x), []
    handle = mlp.fc1.register_forward_hook(lambda *_: seen.append("fc1"))
    torch.testing.assert_close(mlp(x), expected)
    assert seen == ["fc1"]
    handle.remove()
    mlp.fc1 = Adapted(mlp.fc1)
    assert (mlp(x) - expected).abs().max() > 1e-3


class Adapted(nn.Module):
    """A linear layer and something next to it, which exposes the layer's weights as its own."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer, self.weight, self.bias = layer, layer.weight, layer.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + x.sum(-1, keepdim=True)


def test_stem_calls_what_is_not_its_own() -> None:
    stem = ConvBNEmbed(3, [8, 16], [2, 2])
    assert stem._plain()
    stem.proj[0].register_forward_hook(lambda *_: None)
    assert not stem._plain()
    other = ConvBNEmbed(3, [8, 16], [2, 2])
    other.proj[1] = nn.Identity()
    assert not other._plain()
