"""A class token by softmax next to patches by linear attention."""

import pytest
import torch
from torch import Tensor

from sightline.layers import Attention

from ..models.tiny import image, tiny
from ..ops.brute_force import assert_close
from ..ops.cases import DEVICE
from .kernels import check_kernels

DIM, HEADS, GRID = 32, 2, (3, 4)
MECHANISMS = ("inline", "inline(hidden=8)", "inline(phi=elu1)", "inline(residual=false)", "linear")


def with_softmax(text: str) -> str:
    return f"{text[:-1]},softmax_prefix=true)" if text.endswith(")") else f"{text}(softmax_prefix=true)"


def trio(mechanism: str) -> list[Attention]:
    """The mechanism, the same with softmax for the prefix, and softmax alone, of the same weights."""
    torch.manual_seed(0)
    made = [Attention(DIM, HEADS, text) for text in (mechanism, with_softmax(mechanism), "softmax")]
    weights = {name: torch.randn_like(value) * 0.3 for name, value in made[0].state_dict().items()}
    for module in made:
        module.load_state_dict({name: weights[name] for name in module.state_dict()})
    return made


def check(mechanism: str, prefix: int, mask: Tensor | None = None) -> None:
    """Rows of the prefix as softmax has them, those of the grid as the mechanism does; masked ones are undefined."""
    plain, mixed, softmax = (module.to(DEVICE) for module in trio(mechanism))
    x = torch.randn(2, prefix + 12, DIM, device=DEVICE)
    counts = torch.ones(2, prefix + 12, dtype=torch.bool, device=DEVICE) if mask is None else mask
    first = torch.arange(prefix + 12, device=DEVICE) < prefix
    out = mixed(x, GRID, prefix, mask)
    assert_close(out[counts & first], softmax(x, GRID, prefix, mask)[counts & first], 1e-5)
    assert_close(out[counts & ~first], plain(x, GRID, prefix, mask)[counts & ~first], 1e-5)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("prefix", [1, 3])
@pytest.mark.parametrize("grad", [False, True])
def test_rows_of_two_kinds(mechanism: str, prefix: int, grad: bool) -> None:
    with torch.set_grad_enabled(grad):
        check(mechanism, prefix)


@pytest.mark.parametrize("mechanism", ["inline", "linear"])
@torch.no_grad()
def test_masked_keys(mechanism: str) -> None:
    mask = torch.ones(2, 13, dtype=torch.bool, device=DEVICE)
    mask[0, 5:9] = False
    check(mechanism, 1, mask)


def test_kernels_give_the_output_and_gradients_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    check_kernels(trio("inline")[1], GRID, monkeypatch)


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
