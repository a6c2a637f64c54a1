"""The gradient of a table of tokens as a product, next to that of `nn.Embedding`."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.testing import CompileCounterWithBackend
from torch._functorch.aot_autograd import make_boxed_func
from torch._subclasses import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from sightline import backend
from sightline.layers import lookup as module
from sightline.layers.lookup import TokenTable, lookup, table_gradient

ROWS, DIM = 11, 6
ULP = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


@pytest.fixture
def product(monkeypatch: pytest.MonkeyPatch) -> None:
    """The path that compiled models take on a GPU, in eager mode too."""
    monkeypatch.setattr(backend, "lookup_product", lambda table, tokens: not backend.transformed())


def gradient(find: Callable[..., Tensor], table: Tensor, tokens: Tensor, grad: Tensor) -> Tensor:
    table = table.clone().requires_grad_()
    (found,) = torch.autograd.grad(find(table, tokens), table, grad)
    return found


def operators_of(step: Callable[[], Tensor]) -> set[str]:
    """The operators in the graph of the backward pass."""
    found: set[str] = set()

    def record(graph: GraphModule, _: object) -> object:
        found.update(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return make_boxed_func(graph.forward)

    compiler = aot_autograd(fw_compiler=lambda graph, _: make_boxed_func(graph.forward), bw_compiler=record)
    torch._dynamo.reset()
    torch.compile(step, backend=compiler, fullgraph=True)().sum().backward()
    return found


@pytest.mark.usefixtures("product")
@pytest.mark.parametrize("dtype", ULP)
@pytest.mark.parametrize("padding_idx", [None, 3, -1])
@pytest.mark.parametrize("shape", [(), (7,), (5, 40), (2, 3, 50), (0, 9), (4, 0), (3000,)])
def test_gradient(shape: tuple[int, ...], padding_idx: int | None, dtype: torch.dtype) -> None:
    """As precise as that of `F.embedding`, for gradients of very different sizes: half an ulp of the sum of magnitudes,
    and what float32 sums add."""
    torch.manual_seed(0)
    table, tokens = torch.randn(ROWS, DIM).to(dtype), torch.randint(ROWS, shape)
    grad = (torch.randn(*shape, DIM) * torch.randn(*shape, 1).mul(2).exp()).to(dtype)
    found = gradient(lambda table, tokens: lookup(table, tokens, padding_idx), table, tokens, grad)
    exact, size = (
        gradient(lambda table, tokens: F.embedding(tokens, table, padding_idx), table.double(), tokens, value)
        for value in (grad.double(), grad.double().abs())
    )
    assert found.dtype == dtype
    assert found.shape == table.shape
    assert ((found - exact).abs() <= exact.abs() * ULP[dtype] + size * 2e-6).all()
    if padding_idx is not None:
        assert found[padding_idx].count_nonzero() == 0
    assert torch.equal(lookup(table, tokens, padding_idx), F.embedding(tokens, table, padding_idx))


@pytest.mark.usefixtures("product")
def test_parts_have_every_bit_of_float32() -> None:
    """A gradient of one token per row arrives as it is; a product in bfloat16 or TF32 would round it."""
    grad = torch.randn(ROWS, DIM) * torch.logspace(-30, 30, ROWS)[:, None]
    for compiled in (False, True):
        find = torch.compile(lookup, backend="inductor", fullgraph=True) if compiled else lookup
        torch._dynamo.reset()
        assert torch.equal(gradient(find, torch.zeros(ROWS, DIM), torch.arange(ROWS), grad), grad)


def test_sums_of_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """No one-hot matrix is larger than its limit."""
    sizes: list[int] = []
    multiply = module._product
    monkeypatch.setattr(module, "_product", lambda a, b: sizes.append(a.numel()) or multiply(a, b))
    tokens, grad = torch.randint(ROWS, (50,)), torch.randn(50, DIM)
    together = table_gradient(tokens, grad, ROWS, 2)
    monkeypatch.setattr(module, "ONE_HOT", 16 * ROWS)
    apart = table_gradient(tokens, grad, ROWS, 2)
    assert sizes == [50 * ROWS, 16 * ROWS, 16 * ROWS, 16 * ROWS, 2 * ROWS]
    torch.testing.assert_close(apart, together)


def test_state_dicts_are_those_of_an_embedding() -> None:
    tables = []
    for kind in (TokenTable, nn.Embedding):
        torch.manual_seed(0)
        tables.append(kind(ROWS, DIM, padding_idx=2))
    ours, theirs = tables
    assert torch.equal(ours.weight, theirs.weight)
    ours.weight.data.normal_()
    theirs.load_state_dict(ours.state_dict())
    tokens = torch.randint(ROWS, (3, 7))
    assert torch.equal(ours(tokens), theirs(tokens))
    ours.load_state_dict(theirs.state_dict())
    with pytest.raises(IndexError):
        ours(torch.tensor([ROWS]))


@pytest.mark.usefixtures("product")
@pytest.mark.parametrize("options", [{"max_norm": 0.5}, {"scale_grad_by_freq": True}, {"sparse": True}])
def test_other_options_of_an_embedding(options: dict[str, float | bool]) -> None:
    torch.manual_seed(0)
    ours, theirs, tokens = (
        TokenTable(ROWS, DIM, **options),
        nn.Embedding(ROWS, DIM, **options),
        torch.randint(ROWS, (9,)),
    )
    theirs.load_state_dict(ours.state_dict())
    for table in (ours, theirs):
        table(tokens).square().sum().backward()
    assert ours.weight.grad is not None
    assert theirs.weight.grad is not None
    assert torch.equal(ours.weight, theirs.weight)
    assert torch.equal(ours.weight.grad.to_dense(), theirs.weight.grad.to_dense())


@pytest.mark.parametrize("compiler", ["aot_eager", "inductor"])
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.usefixtures("product")
def test_compiled_without_graph_breaks(compiler: str, autocast: bool) -> None:
    """Also for any number of tokens by one graph, and in full precision under autocast."""
    torch._dynamo.reset()
    table, counter = TokenTable(ROWS, DIM, padding_idx=0), CompileCounterWithBackend(compiler)
    compiled = torch.compile(table, backend=counter, fullgraph=True, dynamic=True)
    for length in (30, 700):
        tokens, grad = torch.randint(ROWS, (2, length)), torch.randn(2, length, DIM)
        table.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            compiled(tokens).backward(grad)
        expected = gradient(lambda table, tokens: F.embedding(tokens, table, 0), table.weight.detach(), tokens, grad)
        assert table.weight.grad is not None
        torch.testing.assert_close(table.weight.grad, expected, rtol=1e-5, atol=1e-5)
    assert counter.frame_count == 1


@pytest.mark.usefixtures("product")
def test_number_of_tokens_past_the_limit_is_no_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ONE_HOT", 100 * ROWS)
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(TokenTable(ROWS, DIM), backend=counter, fullgraph=True, dynamic=True)
    for length in (30, 700, 1500):
        compiled(torch.randint(ROWS, (2, length))).sum().backward()
    assert counter.frame_count == 1


def test_graph_of_the_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product and nothing that adds by index; without the path, and thus on a CPU, the embedding's own gradient."""
    table, tokens = TokenTable(ROWS, DIM, padding_idx=0), torch.randint(ROWS, (2, 9))
    plain = operators_of(lambda: table(tokens))
    assert "aten.embedding_dense_backward.default" in plain
    assert "aten.mm.default" not in plain
    monkeypatch.setattr(backend, "lookup_product", lambda table, tokens: torch.compiler.is_dynamo_compiling())
    ours = operators_of(lambda: table(tokens))
    assert "aten.mm.default" in ours
    assert not any("index" in name or "embedding" in name or "scatter" in name for name in ours)


@pytest.mark.parametrize("dtype", ULP)
def test_graph_on_a_gpu(dtype: torch.dtype) -> None:
    """The product is one of half precision that returns float32."""
    with FakeTensorMode():
        tokens = torch.empty(64, dtype=torch.int32, device="cuda")
        grad = torch.empty(64, DIM, dtype=dtype, device="cuda")
        graph = make_fx(lambda tokens, grad: table_gradient(tokens, grad, ROWS, 0))(tokens, grad)
    (product,) = (node for node in graph.graph.nodes if "mm" in str(node.target))
    assert str(product.target) == "aten.mm.dtype"
    half, wide = product.args[0].meta["val"], product.meta["val"]
    assert half.dtype == (torch.bfloat16 if dtype == torch.float32 else dtype)
    assert tuple(half.shape) == (ROWS, 64)
    assert wide.dtype == torch.float32


@pytest.mark.gpu
def test_training_on_a_gpu() -> None:
    """The path that nothing forces: one product, and no gradient rounded under autocast."""
    torch.manual_seed(0)
    table, tokens = TokenTable(257, 64).cuda(), torch.randint(257, (64, 1024), device="cuda", dtype=torch.int32)
    assert "aten.mm.dtype" in operators_of(lambda: table(tokens))
    torch._dynamo.reset()
    grad = torch.randn(64, 1024, 64, device="cuda")
    table.zero_grad()
    with torch.autocast("cuda", torch.bfloat16):
        torch.compile(table, fullgraph=True)(tokens).backward(grad)
    weight = table.weight.detach().double()
    exact = gradient(lambda table, tokens: F.embedding(tokens, table), weight, tokens, grad.double())
    assert table.weight.grad is not None
    assert (table.weight.grad - exact).norm() < 2e-5 * exact.norm()  # TF32: 2e-4; tensor cores cut what they add up


@pytest.mark.usefixtures("product")
def test_transforms_take_the_embedding() -> None:
    """vmap, jvp and grad in compiled code, and a functional call, which is not a transform."""
    table, tokens = TokenTable(ROWS, DIM), torch.randint(ROWS, (3, 5))
    weight = table.weight.detach()

    def squares(weight: Tensor, tokens: Tensor) -> Tensor:
        return torch.func.functional_call(table, {"weight": weight}, (tokens,)).square().sum()

    def each(weight: Tensor) -> Tensor:
        return torch.func.vmap(torch.func.grad(squares), (None, 0))(weight, tokens)

    def along(weight: Tensor) -> Tensor:
        return torch.func.jvp(lambda weight: squares(weight, tokens), (weight,), (weight,))[1]

    counts = F.one_hot(tokens, ROWS).sum(1)  # 3 ROWS
    expected = 2 * counts[..., None] * weight
    for run in (lambda f: f, lambda f: torch.compile(f, backend="aot_eager")):
        torch._dynamo.reset()
        torch.testing.assert_close(run(each)(weight), expected)
        torch.testing.assert_close(run(along)(weight), (expected * weight).sum())
        leaf = weight.clone().requires_grad_()
        run(squares)(leaf, tokens).backward()
        torch.testing.assert_close(leaf.grad, expected.sum(0))


def test_gradients_of_gradients_are_those_of_an_embedding() -> None:
    """In eager mode; where the gradient is a product there is none, as in all code that is compiled."""
    weight, tokens = torch.randn(ROWS, DIM, dtype=torch.float64, requires_grad=True), torch.randint(ROWS, (2, 5))
    assert torch.autograd.gradgradcheck(lambda weight: lookup(weight, tokens, 1).square(), (weight,))


@pytest.mark.usefixtures("product")
def test_a_product_has_no_gradient_that_is_wrong() -> None:
    weight, tokens = torch.randn(ROWS, DIM, requires_grad=True), torch.randint(ROWS, (2, 5))
    (first,) = torch.autograd.grad(lookup(weight, tokens).square().sum(), weight, create_graph=True)
    with pytest.raises(RuntimeError):
        (first.square().sum() + weight.sum()).backward()
