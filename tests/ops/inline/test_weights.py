"""The kernels that make the weights of the local residual, against the layers they stand for."""

import pytest
import torch

from sightline.layers.mechanisms.inline import ResidualWeights
from sightline.ops.common.launching import forget
from sightline.ops.inline import weights_operator as weights
from sightline.ops.inline.weights import weights_from_tokens
from sightline.ops.inline.weights_operator import local_weights

from ..cases import DEVICE, TOLERANCE, assert_close, on_gpu

SHAPES = [(3, 10, 2, 16), (1, 1, 1, 8), (17, 70, 3, 24)]
LARGE = [(128, 197, 6, 32), (4, 16385, 6, 32), (3, 1601, 2, 128)]


def _layer(heads: int, dim: int, dtype: torch.dtype = torch.float32) -> ResidualWeights:
    torch.manual_seed(0)
    return ResidualWeights(heads * dim, heads).to(DEVICE, dtype)


def _run(layer: ResidualWeights, x: torch.Tensor) -> torch.Tensor:
    return weights_from_tokens(x, layer.fc1, layer.fc2, layer.num_heads)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [*SHAPES, *(pytest.param(s, marks=on_gpu) for s in LARGE)])
def test_output_and_gradients(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    images, tokens, heads, dim = shape
    layer = _layer(heads, dim, dtype)
    x = torch.randn(images, tokens, heads * dim, device=DEVICE, dtype=dtype, requires_grad=True)
    exact = _layer(heads, dim).cpu().double()
    exact.load_state_dict(layer.state_dict())
    double = x.detach().cpu().double().requires_grad_()
    want, got = exact(double), _run(layer, x)
    grad = torch.randn_like(want)
    assert got.dtype == dtype
    assert_close("weights", got.cpu(), want, TOLERANCE[dtype])
    names, wanted = zip(*exact.named_parameters(), strict=True)
    wanted_grads = torch.autograd.grad(want, (double, *wanted), grad)
    grads = torch.autograd.grad(got, (x, *layer.parameters()), grad.to(DEVICE, dtype))
    for name, g, w in zip(("tokens", *names), grads, wanted_grads, strict=True):
        assert g.shape == w.shape
        assert g.dtype == dtype
        assert_close(name, g.cpu(), w, TOLERANCE[dtype])


@pytest.mark.usefixtures("overflow_checks")
def test_cut_into_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = _layer(2, 16)
    x = torch.randn(2, 50, 32, device=DEVICE)
    whole = _run(layer, x)
    monkeypatch.setattr(weights, "SHORT", 8)
    monkeypatch.setattr(weights, "CHUNK", 8)
    forget()
    assert_close("weights", _run(layer, x).cpu(), whole.double().cpu(), 1e-6)
    forget()


def test_tokens_apart() -> None:
    """A view with room between tokens and images is read in place, and what lies between is not."""
    layer = _layer(2, 16)
    room = torch.full((3, 12, 48), float("nan"), device=DEVICE)
    x = room[:, 1:11, 8:40]
    x.copy_(torch.randn(3, 10, 32, device=DEVICE))
    assert torch.equal(_run(layer, x), _run(layer, x.contiguous()))


def test_the_same_bits_in_any_batch() -> None:
    layer = _layer(2, 16)
    x = torch.randn(20, 10, 32, device=DEVICE)
    whole = _run(layer, x)
    assert torch.equal(_run(layer, x[3:4]), whole[3:4])
    assert torch.equal(_run(layer, x[7:19]), whole[7:19])


@pytest.mark.slow
def test_opcheck_and_compile() -> None:
    layer = _layer(2, 16)
    x = torch.randn(3, 10, 32, device=DEVICE, requires_grad=True)
    parameters = (layer.fc1.weight, layer.fc1.bias, layer.fc2.weight, layer.fc2.bias)
    torch.library.opcheck(local_weights.default, (x, *parameters, 2, torch.float32))
    plain = [p.detach() for p in parameters]
    mean, grad = torch.randn(3, 32, device=DEVICE), torch.randn(3, 32, 3, 3, device=DEVICE)
    torch.library.opcheck(torch.ops.sightline.local_weights_backward.default, (grad, mean, *plain, 2, 10))
    compiled = torch.compile(lambda x: _run(layer, x), fullgraph=True, backend="aot_eager")
    want, got = _run(layer, x), compiled(x)
    assert torch.equal(want, got)
    first, second = (torch.autograd.grad(out.square().sum(), x)[0] for out in (want, got))
    assert torch.equal(first, second)


@on_gpu
def test_autocast() -> None:
    layer = _layer(6, 32)
    x = torch.randn(4, 197, 192, device=DEVICE)
    with torch.autocast("cuda", torch.bfloat16):
        got = layer(x)
    assert got.dtype == torch.bfloat16
    assert_close("weights", got.float(), layer(x).double(), 1e-2)
