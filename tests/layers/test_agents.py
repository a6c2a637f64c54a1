"""InLine attention with agents: mean queries that gather by softmax."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from sightline import backend
from sightline.layers import Attention
from sightline.layers.core import Place
from sightline.layers.mechanisms import inline
from sightline.layers.mechanisms.landmarks import areas, map_means, shares
from sightline.layers.spec import Spec
from sightline.ops.common.launching import forget
from sightline.util.errors import InputError

from ..models.tiny import image, tiny
from ..ops.brute_force import assert_close
from ..ops.cases import DEVICE
from .kernels import check_kernels

DIM, HEADS, GRID = 32, 2, (4, 6)


def softmax(scores: Tensor) -> Tensor:
    return (scores * (DIM // HEADS) ** -0.5).softmax(-1)


@pytest.mark.parametrize("prefix", [0, 1])
@torch.no_grad()
def test_agents_take_the_place_of_the_even_mean(prefix: int) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, prefix + 24, HEADS, DIM // HEADS, dtype=torch.float64)
    place = Place(GRID, torch.randn(2, prefix + 24, DIM, dtype=torch.float64), prefix)
    plain, with_agents = (Spec.parse(text).build(DIM, HEADS, 16).double() for text in ("inline", "inline(agents=4)"))
    with_agents.load_state_dict(plain.state_dict())
    # 2 x 2 parts of 2 x 3 tokens
    parts = q[:, prefix:].reshape(2, 2, 2, 2, 3, HEADS, -1).mean((2, 4)).flatten(1, 2).transpose(1, 2)  # B H 4 D
    heads = [x.transpose(1, 2) for x in (q, k, v)]
    gathered = softmax(parts @ heads[1].mT) @ heads[2]
    mixed = (softmax(heads[0] @ parts.mT) @ gathered).transpose(1, 2)
    wanted = plain(q, k, v, place) - v.mean(1, keepdim=True) + mixed
    assert_close(with_agents(q, k, v, place), wanted, 1e-9)


@pytest.mark.parametrize("prefix", [0, 1])
@torch.no_grad()
def test_one_softmax_over_window_prefix_and_agents(prefix: int) -> None:
    torch.manual_seed(0)
    core = Spec.parse("inline(agents=4,window=3,residual=false)").build(DIM, HEADS, 16).double()
    core.far.scale.uniform_(0.5, 2)
    core.far.offset.normal_()
    q, k, v = torch.randn(3, 2, HEADS, prefix + 24, DIM // HEADS, dtype=torch.float64)
    place = Place(GRID, torch.randn(2, prefix + 24, DIM, dtype=torch.float64), prefix)
    agents = q[:, :, prefix:].reshape(2, HEADS, 2, 2, 2, 3, -1).mean((3, 5)).flatten(2, 3)
    gathered = softmax(agents @ k.mT) @ v
    y, x = torch.arange(24) // 6, torch.arange(24) % 6
    windows = torch.cat([torch.full((prefix,), -1), y // 3 * 2 + x // 3])
    near = (windows[:, None] == windows) | (windows == -1)
    scores = (q @ k.mT).masked_fill(~near, -torch.inf)
    far = q @ (agents * core.far.scale[:, None] + core.far.offset[:, None]).mT
    wanted = softmax(torch.cat([scores, far], -1)) @ torch.cat([v, gathered], 2)
    heads = [t.transpose(1, 2) for t in (q, k, v)]
    assert_close(core(*heads, place), wanted.transpose(1, 2), 1e-9)  # the linear part has no gain yet
    core.gain.fill_(0.5)
    linear = Spec.parse("inline(residual=false)").build(DIM, HEADS, 16)(heads[0] / 2, *heads[1:], place)
    wanted = wanted.transpose(1, 2) + linear - heads[2].mean(1, keepdim=True)
    assert_close(core(*heads, place), wanted, 1e-9)


@torch.no_grad()
def test_a_window_of_the_whole_map_is_softmax() -> None:
    core = Spec.parse("inline(agents=1,window=6,residual=false)").build(DIM, HEADS, 16).double()
    q, k, v = torch.randn(3, 2, 24, HEADS, DIM // HEADS, dtype=torch.float64)
    q[..., 0] = 1.0
    core.far.offset[:, 0] = -1e4  # nothing comes from far away
    wanted = softmax(q.transpose(1, 2) @ k.transpose(1, 2).mT) @ v.transpose(1, 2)
    assert_close(core(q, k, v, Place(GRID, torch.zeros(2, 24, DIM))), wanted.transpose(1, 2), 1e-9)


@pytest.mark.parametrize("length", [1, 3, 4, 7, 9, 64])
def test_equal_parts_of_any_length(length: int) -> None:
    found = shares(4, length, torch.empty(0, dtype=torch.float64))
    assert_close(found.sum(1), torch.ones(4, dtype=torch.float64), 1e-12)
    assert_close(found.sum(0), torch.full((length,), 4 / length, dtype=torch.float64), 1e-12)
    assert (found >= 0).all()


def test_means_of_parts_that_tokens_fill() -> None:
    x = torch.randn(2, 24, 5)
    pooled = torch.nn.functional.avg_pool2d(x.mT.unflatten(2, GRID), (2, 3)).flatten(2).mT
    assert_close(map_means(x[:, :, None], None, GRID, 2)[0][:, :, 0], pooled, 1e-6)


def test_a_constant_map_has_constant_means_at_any_size() -> None:
    for grid in ((1, 1), (3, 5), (14, 14), (61, 17)):
        x = torch.full((1, grid[0] * grid[1], 1, 2), 3.0)
        assert_close(map_means(x, None, grid, 7)[0], torch.full((1, 49, 1, 2), 3.0), 1e-5)


def test_parts_are_kept_as_tensors_for_training_too() -> None:
    """The first call is in inference mode and autocast; the next one needs a gradient."""
    x = torch.randn(1, 35, 1, 4)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        first = map_means(x, None, (5, 7), 2)[0]
    means = map_means(x.requires_grad_(), None, (5, 7), 2)[0]
    means.sum().backward()
    assert means.dtype == torch.float32
    assert_close(first.float(), means.detach(), 1e-2)
    assert areas(2, (5, 7), x) is areas(2, (5, 7), x)


@pytest.mark.parametrize("window", [0, 4])
@torch.no_grad()
def test_what_is_masked_makes_no_difference(window: int) -> None:
    module = Attention(DIM, HEADS, f"inline(agents=4,softmax_prefix=true,window={window})").to(DEVICE)
    x = torch.randn(2, 25, DIM, device=DEVICE)
    mask = torch.ones(2, 25, dtype=torch.bool, device=DEVICE)
    mask[0, 5:9] = False
    mask[1, 1:] = False  # no agent is left
    other = torch.where(mask[..., None], x, torch.full_like(x, 1e4))
    out, same = module(x, GRID, 1, mask), module(other, GRID, 1, mask)
    assert out.isfinite().all()
    assert_close(out[mask], same[mask], 1e-5)


@pytest.mark.parametrize("window", [0, 4])
def test_kernels_give_the_output_and_gradients_of_torch(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layer = Attention(DIM, HEADS, f"inline(agents=4,softmax_prefix=true,window={window})")
    if window:
        torch.nn.init.ones_(layer.core.gain)
    check_kernels(layer, GRID, monkeypatch)


@pytest.mark.parametrize(
    ("dim", "heads", "grid", "attention", "dtype"),
    [
        (32, 2, (4, 6), "inline(agents=4)", torch.float16),  # two heads of a program
        (64, 1, (5, 19), "inline(agents=49,softmax_prefix=true)", torch.bfloat16),
        (48, 2, (33, 34), "inline(agents=9)", torch.float16),  # several programs for an image
        (32, 2, (33, 34), "inline(agents=16,softmax_prefix=true)", torch.bfloat16),
        (64, 1, (33, 34), "inline(softmax_prefix=true)", torch.float16),
        (32, 4, (4, 6), "inline(hidden=4,softmax_prefix=true)", torch.bfloat16),
        (32, 1, (4, 6), "inline(agents=16,phi=elu1)", torch.float16),
        (32, 1, (33, 34), "inline(agents=4,phi=elu1)", torch.bfloat16),
        (32, 2, (4, 6), "inline(agents=4,softmax_prefix=true,window=3)", torch.float16),
        (64, 1, (5, 19), "inline(agents=49,softmax_prefix=true,window=7,residual=false)", torch.float16),
        (64, 1, (5, 19), "inline(agents=49,softmax_prefix=true,window=7,residual=false)", torch.bfloat16),
        (32, 2, (4, 6), "inline(agents=4,softmax_prefix=true,window=3,residual=false)", torch.bfloat16),
        (48, 2, (33, 34), "inline(agents=9,softmax_prefix=true,window=8)", torch.bfloat16),  # several programs
        (64, 2, (17, 16), "inline(agents=9,softmax_prefix=true,window=7,residual=false)", torch.float16),
    ],
)
@torch.no_grad()
def test_readers_in_the_kernels(
    dim: int, heads: int, grid: tuple[int, int], attention: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without gradients, one operator mixes the tokens, gathers for the agents and the first tokens, and asks."""
    torch.manual_seed(0)
    core = Spec.parse(attention).build(dim, heads, 16).to(DEVICE, dtype)
    if core.far is not None:
        for parameter in (core.gain, core.far.scale, core.far.offset):
            parameter.uniform_(-1, 1)
    tokens = 1 + grid[0] * grid[1]
    q, k, v = torch.randn(2, tokens, 3, heads, dim // heads, device=DEVICE, dtype=dtype).unbind(2)
    place = Place(grid, torch.randn(2, tokens, dim, device=DEVICE, dtype=dtype), 1)
    monkeypatch.setattr(backend, "requested", lambda: "torch")
    wanted = core.double()(q.double(), k.double(), v.double(), replace(place, context=place.context.double()))
    monkeypatch.setattr(backend, "requested", lambda: "triton")
    monkeypatch.setattr(inline, "gather", None)
    monkeypatch.setattr(inline.prefix, "by_softmax", None)
    out = core.to(dtype)(q, k, v, place)
    forget()
    assert_close(out, wanted.to(dtype), {torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype])


@pytest.mark.parametrize("attention", ["inline(agents=9)", "inline(agents=9,window=5)"])
@torch.no_grad()
def test_images_of_any_size(attention: str) -> None:
    model = tiny("pvt", attention=attention)
    for size in ((64, 64), (61, 96)):
        assert model(image(*size)).isfinite().all()


@pytest.mark.parametrize("window", [0, 3])
def test_a_map_without_tokens(window: int) -> None:
    """Only a class token is left."""
    x = torch.randn(2, 1, DIM, device=DEVICE)
    module = Attention(DIM, HEADS, f"inline(agents=4,window={window})").to(DEVICE)
    assert module(x, (0, 0), 1).isfinite().all()


def test_a_number_that_is_not_a_square() -> None:
    with pytest.raises(InputError, match=r"inline\(agents=5\): give a square number"):
        Attention(DIM, HEADS, "inline(agents=5)")


def test_every_option_next_to_windows_is_learned() -> None:
    module = Attention(DIM, HEADS, "inline(agents=4,window=3,temperature=true,key_norm=true,head_map=true)").to(DEVICE)
    torch.nn.init.constant_(module.core.gain, 0.5)
    module(torch.randn(2, 25, DIM, device=DEVICE), GRID, 1).square().sum().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name
        if not name.endswith("_map.inner"):  # which is behind a zero
            assert parameter.grad.abs().max() > 0, name


def test_windows_are_for_the_identity() -> None:
    with pytest.raises(InputError, match=r"inline\(window=7,phi=relu\): .*phi=identity"):
        Attention(DIM, HEADS, "inline(agents=49,window=7,phi=relu)")


def test_windows_without_agents() -> None:
    with pytest.raises(InputError, match=r"inline\(window=7\): .*inline\(agents=49,window=7\)"):
        Attention(DIM, HEADS, "inline(window=7)")


def test_windows_of_an_empty_map() -> None:
    module = Attention(DIM, HEADS, "inline(agents=4,window=3)").to(DEVICE)
    assert module(torch.zeros(2, 0, DIM, device=DEVICE), (0, 0)).shape == (2, 0, DIM)
