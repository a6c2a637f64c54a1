"""A class token by softmax next to patches by linear attention."""

from typing import Any

import pytest
import torch
from torch import Tensor

from sightline import backend
from sightline.layers import Attention
from sightline.ops.common.launching import forget

from ..models.tiny import image, tiny
from ..ops.brute_force import assert_close
from ..ops.cases import DEVICE

DIM, HEADS, GRID = 32, 2, (3, 4)
MECHANISMS = ("inline", "inline(hidden=8)", "inline(phi=elu1)", "inline(residual=false)", "linear")


def with_softmax(text: str) -> str:
    return f"{text[:-1]},softmax_prefix=true)" if text.endswith(")") else f"{text}(softmax_prefix=true)"


def trio(mechanism: str, **options: Any) -> list[Attention]:
    """The mechanism, the same with softmax for the prefix, and softmax alone, of the same weights."""
    torch.manual_seed(0)
    made = [Attention(DIM, HEADS, text, **options) for text in (mechanism, with_softmax(mechanism), "softmax")]
    weights = {name: torch.randn_like(value) * 0.3 for name, value in made[0].state_dict().items()}
    for module in made:
        module.load_state_dict({name: weights[name] for name in module.state_dict()})
    return made


def check(mechanism: str, prefix: int, mask: Tensor | None, dtype: torch.dtype, tolerance: float) -> None:
    plain, mixed, softmax = (module.to(DEVICE, dtype) for module in trio(mechanism))
    x = torch.randn(2, prefix + 12, DIM, device=DEVICE, dtype=dtype)
    out = mixed(x, GRID, prefix, mask)
    assert_close(out[:, :prefix], softmax(x, GRID, prefix, mask)[:, :prefix], tolerance)
    assert_close(out[:, prefix:], plain(x, GRID, prefix, mask)[:, prefix:], tolerance)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("prefix", [1, 3])
@pytest.mark.parametrize("grad", [False, True])
def test_rows_of_two_kinds(mechanism: str, prefix: int, grad: bool) -> None:
    with torch.set_grad_enabled(grad):
        check(mechanism, prefix, None, torch.float32, 1e-5)


@pytest.mark.parametrize("mechanism", ["inline", "linear"])
@torch.no_grad()
def test_masked_keys(mechanism: str) -> None:
    mask = torch.ones(2, 13, dtype=torch.bool, device=DEVICE)
    mask[0, 5:9] = False
    plain, mixed, softmax = (module.to(DEVICE) for module in trio(mechanism))
    x = torch.randn(2, 13, DIM, device=DEVICE)
    out = mixed(x, GRID, 1, mask)
    assert_close(out[:, :1], softmax(x, GRID, 1, mask)[:, :1], 1e-5)
    assert_close(out[:, 1:][mask[:, 1:]], plain(x, GRID, 1, mask)[:, 1:][mask[:, 1:]], 1e-5)


def test_kernels_give_the_output_and_gradients_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = trio("inline")[1].to(DEVICE)
    x = torch.randn(2, 13, DIM, device=DEVICE, requires_grad=True)
    leaves, found = [x, *layer.parameters()], []
    monkeypatch.setattr(backend, "requested", lambda: "triton" if found else "torch")
    for _ in range(2):
        out = layer(x, GRID, 1)
        found.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    forget()
    for one, other in zip(*found, strict=True):
        assert_close(other, one, 1e-4)


@pytest.mark.parametrize("mechanism", ["inline", "inline(phi=elu1)"])
def test_gradients_of_the_projection(mechanism: str) -> None:
    """Queries, keys, values and their biases get gradients from both kinds of rows."""
    module = trio(mechanism)[1].double()
    x = torch.randn(1, 13, DIM, dtype=torch.float64)
    torch.autograd.gradcheck(lambda bias: torch.func.functional_call(
        module, {"qkv.bias": bias}, (x, GRID, 1)), (module.qkv.bias.detach().clone().requires_grad_(),), fast_mode=True,
    )  # fmt: skip
    torch.autograd.gradcheck(lambda x: module(x, GRID, 1), (x.requires_grad_(),), fast_mode=True)


@torch.no_grad()
def test_a_model_without_a_class_token_is_not_changed() -> None:
    plain, mixed = (tiny("pvt", attention=text) for text in ("inline", "inline(softmax_prefix=true)"))
    x = image()
    assert torch.equal(plain(x), mixed(x))


@torch.no_grad()
def test_the_last_block_of_a_student_is_exact() -> None:
    """Nothing but the class token is read after the last block."""
    teacher, student = (tiny("deit", attention=text) for text in ("softmax", "softmax*2+inline(softmax_prefix=true)"))
    x = image()
    assert_close(student(x), teacher(x), 1e-5)
