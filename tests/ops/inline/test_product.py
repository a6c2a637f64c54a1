"""Products of tall and small matrices: values, and derivatives of first and second order."""

import pytest
import torch

from sightline.ops.inline.product import matmul, moment


def pair(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("tokens", [0, 1, 7])
def test_products_and_their_derivatives(tokens: int) -> None:
    a, b, small = pair((2, tokens, 3), (2, tokens, 4), (2, 3, 4))
    assert torch.equal(matmul(a, small), a @ small)
    assert torch.equal(moment(a, b), a.mT @ b)
    for function, inputs in ((matmul, (a, small)), (moment, (a, b))):
        assert torch.autograd.gradcheck(function, inputs)
        assert torch.autograd.gradgradcheck(function, inputs)


def test_gradients_of_each_sample() -> None:
    a, b = (t.detach() for t in pair((5, 7, 3), (5, 7, 4)))
    found = torch.func.vmap(torch.func.grad(lambda x, y: moment(x, y).square().sum()))(a, b)
    expected = torch.func.vmap(torch.func.grad(lambda x, y: (x.mT @ y).square().sum()))(a, b)
    torch.testing.assert_close(found, expected)


def test_only_what_is_asked_for_has_a_gradient() -> None:
    a, small = pair((2, 7, 3), (2, 3, 4))
    matmul(a.detach(), small).sum().backward()
    assert a.grad is None
    assert small.grad is not None
