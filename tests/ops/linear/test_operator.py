"""The kernels as torch operators: opcheck, compile, export, FLOPs, graphs, and what is rejected."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from sightline.ops import inline_attention, linear_attention
from sightline.ops.common.arguments import contiguous_heads
from sightline.ops.common.launching import forget
from sightline.ops.inline.layer import inline_from_packed
from sightline.ops.linear import forward_kernels, plan
from sightline.ops.linear.operator import attend, attend_backward

from ..cases import DEVICE, TOLERANCE, compare, inline, on_gpu, tokens, weights

SHAPE = {"grid": (3, 4), "prefix": 1}


def _inputs() -> list[torch.Tensor]:
    return [*tokens(2, 13, 2, 16), weights(2, 32)]


def _arguments(
    *tensors: torch.Tensor | None, heads: int = 2, grid: tuple[int, int] = (0, 0), agents: int = 0, window: int = 0
) -> tuple:
    """Arguments of `attend`: tensors up to those of readers, then the rest; a gradient will be needed."""
    given = (*tensors, *[None] * (14 - len(tensors)))
    return (*given, None, None, None, agents, window, heads, 0, *grid, 1, 0.25, 0.0, "identity", False, "fp32", True)


def _layers(heads: int, dim: int) -> list[torch.Tensor]:
    channels = heads * dim
    shapes = ((channels, dim, 1), (channels,), (9 * channels, dim, 1), (9 * channels,))
    return [(torch.randn(shape, device=DEVICE) * 0.3).requires_grad_() for shape in shapes]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "residual", "packed", "layer", "layer with bias"])
def test_opcheck(kind: str) -> None:
    q, k, v, _ = _inputs()
    qkv = torch.randn(2, 13, 96, device=DEVICE, requires_grad=True)
    weights = torch.randn(2, 9, 32, device=DEVICE, requires_grad=True)
    x = torch.randn(2, 13, 32, device=DEVICE, requires_grad=True)
    tensors = {
        "plain": (contiguous_heads(q), contiguous_heads(k), contiguous_heads(v)),
        "residual": (contiguous_heads(q), contiguous_heads(k), contiguous_heads(v), weights),
        "packed": (qkv,),
        "layer": (qkv, None, None, None, x, *_layers(2, 16)),
        "layer with bias": (qkv, None, None, None, x, *_layers(2, 16), torch.randn(96, device=DEVICE).requires_grad_()),
    }[kind]
    arguments = _arguments(*tensors, grid=(0, 0) if kind in ("plain", "packed") else (3, 4))
    torch.library.opcheck(attend.packet.default, arguments)
    plain = [t.detach() if isinstance(t, torch.Tensor) else t for t in arguments]
    out, sums, made, mean = attend(*plain)
    weights = made if "layer" in kind else plain[3]
    rest = (*plain[:3], torch.randn_like(out), weights, *plain[5:10], *plain[14:17], sums, mean, *plain[19:-1],
            torch.float32)  # fmt: skip
    torch.library.opcheck(attend_backward.packet.default, rest)


@pytest.mark.slow
@pytest.mark.parametrize(("agents", "window"), [(0, 0), (4, 0), (4, 3)])
def test_opcheck_of_readers(agents: int, window: int) -> None:
    q, k, v = (t.detach().half() for t in tokens(2, 13, 2, 16))
    x, readers = (torch.randn(2, *shape, device=DEVICE).half() for shape in ((13, 32), (agents + 1, 2, 16)))
    layers = [t.detach().half() for t in _layers(2, 16)]
    far = [torch.randn(2, n, device=DEVICE).half() if window else None for n in (16, 1, 1)]
    arguments = _arguments(q, k, v, None, x, *layers, None, readers, *far, grid=(3, 4), agents=agents, window=window)
    torch.library.opcheck(attend.packet.default, (*arguments[:-1], False))


def test_keys_shorter_than_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long queries and few keys, whose sums have a single part."""
    monkeypatch.setattr(plan, "SHORT", 10)
    monkeypatch.setattr(plan, "CHUNK", {True: 40, False: 40})
    forget()
    inputs = [torch.randn(2, count, 2, 16, device=DEVICE, requires_grad=True) for count in (100, 7, 7)]
    compare(lambda *x, **options: inline(*x, residual=False, **options), inputs, TOLERANCE[torch.float32])
    forget()


def test_packed_projection() -> None:
    qkv = torch.randn(2, 13, 96, device=DEVICE, requires_grad=True)

    def run(qkv: torch.Tensor, backend: str) -> torch.Tensor:
        if backend == "torch":
            q, k, v = qkv.unflatten(2, (3, 2, 16)).unbind(2)
            return inline_attention(q, k, v, backend=backend).flatten(2)
        return inline_from_packed(qkv, qkv, None, 2, SHAPE["grid"], SHAPE["prefix"], "identity")

    compare(run, [qkv], TOLERANCE[torch.float32])


@pytest.mark.slow
def test_compile_without_graph_breaks() -> None:
    inputs = _inputs()
    compiled = torch.compile(lambda *x: inline(*x, backend="triton", **SHAPE), fullgraph=True, backend="aot_eager")
    want, got = inline(*inputs, backend="triton", **SHAPE), compiled(*inputs)
    assert torch.equal(got, want)
    grads = [torch.autograd.grad(out.square().sum(), inputs) for out in (want, got)]
    for first, second in zip(*grads, strict=True):
        assert torch.equal(first, second)


@pytest.mark.slow
def test_one_graph_for_any_number_of_tokens() -> None:
    compiled = torch.compile(
        lambda q, k, v: linear_attention(q, k, v, backend="triton"), fullgraph=True, dynamic=True, backend="aot_eager"
    )
    with torch._dynamo.config.patch(error_on_recompile=True):
        for count in (13, 20, 31, 50):
            q, k, v = tokens(2, count, 2, 16)
            assert torch.equal(compiled(q, k, v), linear_attention(q, k, v, backend="triton"))


def test_export() -> None:
    class Module(nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
            return inline(q, k, v, r, backend="triton", **SHAPE)

    inputs = tuple(t.detach().clone() for t in _inputs())
    program = torch.export.export(Module(), inputs)
    assert any(node.target == torch.ops.sightline.attend.default for node in program.graph.nodes)
    assert torch.equal(program.module()(*inputs), inline(*inputs, backend="triton", **SHAPE))


def test_flops_are_those_of_the_products_and_taps() -> None:
    inputs = _inputs()
    with FlopCounterMode(display=False) as forward:
        out = inline(*inputs, backend="triton", **SHAPE)
    with FlopCounterMode(display=False) as backward:
        out.sum().backward()
    elements = 2 * 13 * 32
    assert forward.get_total_flops() == elements * (2 * 2 * 16 + 2 * 9)
    assert backward.get_total_flops() == 2 * forward.get_total_flops()


def test_second_derivative_is_an_error_instead_of_wrong() -> None:
    q, k, v, _ = _inputs()
    (grad,) = torch.autograd.grad(inline_attention(q, k, v, backend="triton").square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def test_no_sums_are_saved_without_gradients() -> None:
    inputs = [t.detach() for t in _inputs()]
    arguments = _arguments(*(contiguous_heads(t) for t in inputs[:3]))
    assert attend(*arguments[:-1], False)[1].shape[0] == 0
    assert attend(*arguments)[1].shape[0] == 2
    out = inline(*inputs, backend="triton", **SHAPE)
    assert not out.requires_grad
    assert torch.equal(out, inline(*_require(inputs), backend="triton", **SHAPE))


def _require(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    return [t.clone().requires_grad_() for t in inputs]


@pytest.mark.parametrize(
    ("dim", "value_dim", "dtype", "reason"),
    [
        (4, 4, torch.float32, "head dim .*4"),
        (129, 129, torch.float32, "head dim .*129"),
        (16, 8, torch.float32, "v .*8.*16"),
        (16, 16, torch.float64, "torch.float64"),
    ],
)
def test_what_the_kernels_do_not_take(dim: int, value_dim: int, dtype: torch.dtype, reason: str) -> None:
    q = k = torch.randn(1, 5, 2, dim, device=DEVICE, dtype=dtype)
    v = torch.randn(1, 5, 2, value_dim, device=DEVICE, dtype=dtype)
    with pytest.raises(ValueError, match=rf"^inline_attention: backend='triton'.*{reason}.*'auto'"):
        inline_attention(q, k, v, backend="triton")
    assert inline_attention(q, k, v).shape == (1, 5, 2, value_dim)  # auto falls back on the reference


def test_no_tokens() -> None:
    q = torch.randn(1, 0, 2, 16, device=DEVICE)
    with pytest.raises(ValueError, match=r"^inline_attention: backend='triton'.*no tokens"):
        inline_attention(q, q, q, backend="triton")
    assert inline_attention(q, q, q).shape == (1, 0, 2, 16)


@on_gpu
def test_cuda_graph() -> None:
    inputs = [t.detach() for t in _inputs()]
    grad = torch.randn(2, 13, 2, 16, device=DEVICE)

    def step() -> list[torch.Tensor]:
        leaves = [t.detach().requires_grad_() for t in inputs]
        out = inline(*leaves, backend="triton", **SHAPE)
        return [out, *torch.autograd.grad(out, leaves, grad)]

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for t in inputs:
        t.copy_(torch.randn_like(t))
    graph.replay()
    for got, want in zip(captured, step(), strict=True):
        assert torch.equal(got, want)


@on_gpu
def test_no_new_kernel_for_a_new_number_of_tokens() -> None:
    def run(side: int) -> None:
        q, k, v = torch.randn(2, side * side, 3, 6, 32, device=DEVICE, dtype=torch.bfloat16).unbind(2)
        r = torch.randn(2, 192, 3, 3, device=DEVICE, dtype=torch.bfloat16)
        inline_attention(q, k, v, residual=r, grid=(side, side), backend="triton")

    run(16)
    kernels = _compiled()
    for side in (14, 17, 24, 31):
        run(side)
    assert _compiled() == kernels


def _compiled() -> int:
    caches = forward_kernels.forward_short.device_caches.values()
    return sum(len(cache[0]) for cache in caches)
