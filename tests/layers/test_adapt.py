"""Options that help to inherit: nothing when off, the identity at first, and what each of them does."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sightline.layers import Attention, Place, Spec
from sightline.layers.adapt import statistics
from sightline.util.errors import InputError

from ..models.tiny import fresh, image, tiny
from ..ops.brute_force import assert_close, some_keys, tokens
from .kernels import check_kernels

DIM, HEADS, GRID = 12, 2, (3, 4)
OPTIONS = ("key_norm", "temperature", "head_map")
ALL = ",".join(f"{option}=true" for option in OPTIONS)
MECHANISMS = ("inline", "inline(residual=false)", "inline(phi=elu1)", "linear", "linear(phi=elu1)",
              "linear(phi=relu_affine)")  # fmt: skip


def with_options(text: str, options: str) -> str:
    name, _, rest = text.partition("(")
    return f"{name}({','.join(part for part in (rest.removesuffix(')'), options) if part)})"


def build(text: str) -> Any:
    torch.manual_seed(0)
    return Spec.parse(text).build(DIM, HEADS, 16).double()


def lively(core: nn.Module) -> Any:
    for parameter in core.parameters():
        nn.init.normal_(parameter, std=0.4)
    return core


def inputs(prefix: int = 0, masked: bool = False) -> tuple[list[Tensor], Place]:
    q, k, v = (2 * tokens(2, prefix + 12, HEADS, DIM // HEADS) for _ in range(3))
    return [q, k, v], Place(GRID, q.flatten(2), prefix, some_keys(2, prefix + 12) if masked else None)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_off_is_nothing(mechanism: str) -> None:
    off = ",".join(f"{option}=false" for option in OPTIONS)
    torch.manual_seed(0)
    plain = Attention(DIM, HEADS, mechanism)
    torch.manual_seed(0)
    other = Attention(DIM, HEADS, with_options(mechanism, off))
    assert list(plain.state_dict()) == list(other.state_dict())
    assert plain.core.adapt is None
    assert plain.core.injective is not None
    for grid in (GRID, (9, 8)):
        x = torch.randn(2, 1 + grid[0] * grid[1], DIM)
        assert torch.equal(plain(x, grid, 1), other(x, grid, 1))


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("masked", [False, True])
def test_the_identity_at_first(mechanism: str, option: str, masked: bool) -> None:
    plain, core = build(mechanism), build(with_options(mechanism, f"{option}=true"))
    missing = core.load_state_dict(plain.state_dict(), strict=False).missing_keys
    assert missing
    assert all(key.startswith("adapt.") for key in missing)
    qkv, place = inputs(prefix=1, masked=masked)
    counts = slice(None) if place.key_mask is None else place.key_mask
    assert_close(core(*qkv, place)[counts], plain(*qkv, place)[counts], 1e-13)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("option", [*OPTIONS, ALL])
def test_gradients(mechanism: str, option: str) -> None:
    text = with_options(mechanism, option if "=" in option else f"{option}=true")
    core, (qkv, place) = lively(build(text)), inputs(prefix=1)
    names, parameters = zip(*core.named_parameters(), strict=True)

    def run(q: Tensor, k: Tensor, v: Tensor, *values: Tensor) -> Tensor:
        return torch.func.functional_call(core, dict(zip(names, values, strict=True)), (q, k, v, place))

    variables = [t.detach().clone().requires_grad_() for t in (*qkv, *parameters)]
    assert torch.autograd.gradcheck(run, variables, atol=1e-6, fast_mode=True)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_every_option_learns_from_the_start(mechanism: str) -> None:
    core, (qkv, place) = build(with_options(mechanism, ALL)), inputs()
    core(*qkv, place).square().sum().backward()
    for name, parameter in core.adapt.named_parameters():
        assert parameter.grad is not None, name
        assert (parameter.grad.abs().max() > 0) == ("inner" not in name), name  # after `outer`, which is zero


def test_a_temperature_is_a_factor_of_the_queries() -> None:
    (q, k, v), place = inputs()
    factor = torch.tensor([2.0, 0.5], dtype=q.dtype)
    for text in ("inline(residual=false,{})", "linear(phi=exp,{})"):
        plain, core = build(text.format("key_norm=false")), build(text.format("temperature=true"))
        core.adapt.log_scale.data.copy_(factor.log())
        assert_close(core(q, k, v, place), plain(q * factor.view(2, 1), k, v, place), 1e-12)
    core = build("linear(temperature=true)")  # relu: features to a power, sharper
    core.adapt.log_scale.data.fill_(2.0)
    every, sharp = torch.arange(12), core.rows(q, k, torch.arange(12), place)
    blunt = build("linear").rows(q, k, every, place)
    assert_close(sharp.sum(-1), blunt.sum(-1), 1e-9)
    assert sharp.amax(-1).mean() > 1.1 * blunt.amax(-1).mean()


@pytest.mark.parametrize("phi", ["identity", "leaky_relu"])
def test_no_temperature_of_signed_features(phi: str) -> None:
    with pytest.raises(InputError, match=f"phi={phi}.*temperature"):
        build(f"linear(phi={phi},temperature=true)")


@pytest.mark.parametrize("masked", [False, True])
def test_normalized_keys(masked: bool) -> None:
    (q, k, v), place = inputs(masked=masked)
    far, wide = k + 5 * tokens(1, 1, HEADS, DIM // HEADS), 1e6 * k
    counts = place.counts(k)
    for text in ("linear(phi=elu1,key_norm=true)", "inline(phi=exp,residual=false,key_norm=true)"):
        core = build(text)
        core.adapt.key_power.data.fill_(1)
        assert_close(core(q, far, v, place)[counts], core(q, k, v, place)[counts], 1e-10)
        assert_close(core(q, wide, v, place)[counts], core(q, 2 * wide, v, place)[counts], 1e-9)
    mean, variance = statistics(k, place)
    for b in range(2):
        kept = k[b, counts[b]]
        assert_close(mean[b, 0], kept.mean(0), 1e-12)
        assert_close(variance[b, 0], kept.var(0, unbiased=False), 1e-12)


def test_inline_with_the_identity_is_invariant_to_a_shift_of_the_keys_already() -> None:
    (q, k, v), place = inputs()
    core = lively(build("inline(residual=false,key_norm=true)"))
    assert not core.adapt.shift
    assert_close(core(q, k + 3, v, place), core(q, k, v, place), 1e-12)


@pytest.mark.parametrize("garbage", [50.0, float("nan")])
@pytest.mark.parametrize("mechanism", ["inline", "linear"])
def test_masked_tokens_are_not_read(mechanism: str, garbage: float) -> None:
    core, ((q, k, v), place) = lively(build(with_options(mechanism, ALL))), inputs(masked=True)
    mask = place.counts(k)
    junk = torch.where(mask[:, :, None, None], k, garbage)
    parameters = list(core.adapt.parameters())
    found = []
    for keys in (k, junk):
        out = core(q, keys, v, replace(place, context=v.flatten(2)))
        found.append([out, *torch.autograd.grad(out[mask].square().sum(), parameters)])
    for one, other in zip(*found, strict=True):
        assert_close(other, one, 1e-12)


@pytest.mark.parametrize("mechanism", ["inline", "linear"])
def test_kernels_run_with_every_option(mechanism: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_kernels(lively(Attention(16, 2, with_options(mechanism, ALL))), GRID, monkeypatch)


@pytest.mark.parametrize("family", ["deit", "cswin"])
def test_models_inherit(family: str) -> None:
    """From softmax and from the mechanism itself, whose tensors all stay."""
    text = f"inline({ALL})"
    given = tiny(family, attention="inline")
    model = fresh(family, attention=text).eval()
    with pytest.warns(UserWarning, match="adapt"):
        model.load_state_dict(given.state_dict())
    x = image(64)
    torch.testing.assert_close(model(x), given(x), rtol=1e-4, atol=1e-4)
    with pytest.warns(UserWarning, match="keep their initial values"):
        model.load_state_dict(tiny(family, attention="softmax").state_dict())


def test_fewer_hidden_units_are_units_of_zeros() -> None:
    small, whole = lively(build("inline(hidden=2)")), build("inline")
    with torch.no_grad():
        for own, padded in zip(whole.residual.layers(), small.residual.layers(), strict=True):
            own.copy_(padded)
    q, k, v = (tokens(2, 12, HEADS, DIM // HEADS) for _ in range(3))
    place = Place(GRID, context=tokens(2, 12, 1, DIM).flatten(2))
    assert_close(small(q, k, v, place), whole(q, k, v, place), 1e-9)
    whole(q, k, v, place).sum().backward()
    assert not whole.residual.fc1.weight.grad.unflatten(0, (HEADS, -1))[:, 2:].any()  # so that they stay zeros
    for hidden in (-1, 7):
        with pytest.raises(InputError, match=rf"hidden={hidden}"):
            build(f"inline(hidden={hidden})")
    with pytest.raises(InputError, match="hidden=2"):
        build("inline(residual=false,hidden=2)")
