"""The SOFT kernels as torch operators: opcheck, compile, export, FLOPs, graphs, and what is rejected."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from sightline.ops import soft_attention
from sightline.ops.common.arguments import contiguous_heads
from sightline.ops.soft import newton_residual
from sightline.ops.soft.operator import soft_attend, soft_attend_backward

from ..cases import on_gpu
from .cases import DEVICE, both, inputs, soft


def _inputs() -> list[torch.Tensor]:
    return inputs(2, 13, 9, 2, 16)


@pytest.mark.slow
@both
def test_opcheck(normalized: bool) -> None:
    x = [contiguous_heads(t) for t in _inputs()]
    options = (0, 0, 0.5, normalized, 1, "fp32")
    torch.library.opcheck(soft_attend.packet.default, (*x, None, None, None, *options, True))
    plain = [t.detach() for t in x]
    out, *saved = soft_attend(*plain, None, None, None, *options, True)
    given = (*plain, torch.randn_like(out), None, None, None, *saved, *options)
    torch.library.opcheck(soft_attend_backward.packet.default, given)


def test_shapes_with_more_landmarks_than_a_program_holds() -> None:
    x = [contiguous_heads(t.detach()) for t in inputs(1, 5, 70, 1, 16)]
    given = (*x, None, None, None, 0, 0, 0.5, True, 1, "fp32", True)
    torch.library.opcheck(soft_attend.packet.default, given, test_utils="test_faketensor")


@pytest.mark.slow
def test_compile_without_graph_breaks() -> None:
    x = _inputs()
    compiled = torch.compile(lambda *x: soft(*x, iterations=3, backend="triton"), fullgraph=True, backend="aot_eager")
    want, got = soft(*x, iterations=3, backend="triton"), compiled(*x)
    assert torch.equal(got, want)
    grads = [torch.autograd.grad(out.square().sum(), x) for out in (want, got)]
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


@pytest.mark.slow
def test_one_graph_for_any_number_of_tokens() -> None:
    compiled = torch.compile(
        lambda *x: soft(*x, iterations=2, backend="triton"), fullgraph=True, dynamic=True, backend="aot_eager"
    )
    with torch._dynamo.config.patch(error_on_recompile=True):
        for count in (13, 20, 31):
            x = [t.detach() for t in inputs(2, count, 9, 2, 16)]
            assert torch.equal(compiled(*x), soft(*x, iterations=2, backend="triton"))


def test_export() -> None:
    class Module(nn.Module):
        def forward(self, q: torch.Tensor, v: torch.Tensor, marks: torch.Tensor) -> torch.Tensor:
            return soft(q, v, marks, iterations=2, backend="triton")

    x = tuple(t.detach().clone() for t in _inputs())
    program = torch.export.export(Module(), x)
    assert any(node.target == torch.ops.sightline.soft_attend.default for node in program.graph.nodes)
    assert torch.equal(program.module()(*x), Module()(*x))


def test_flops_are_those_of_the_products() -> None:
    x = _inputs()
    with FlopCounterMode(display=False) as forward:
        out = soft(*x, iterations=3, backend="triton")
    with FlopCounterMode(display=False) as backward:
        out.sum().backward()
    tokens, squares, cubes = 4 * 13 * 9 * 16, 4 * 9 * 9 * 16, 4 * 9**3
    assert forward.get_total_flops() == 2 * (3 * tokens + 2 * squares + 6 * cubes)
    assert backward.get_total_flops() == 2 * (7 * tokens + 3 * squares)


@pytest.mark.slow
def test_flops_of_a_pack_are_those_of_its_images() -> None:
    x = [t.flatten(0, 1)[None].detach().requires_grad_() for t in _inputs()]
    ends = [torch.tensor([0, count, 2 * count], device=DEVICE) for count in (13, 9)]
    counts = []
    for given in (x, [t.unflatten(1, (2, -1))[0].detach().requires_grad_() for t in x]):
        packed = dict(zip(("cu_seqlens", "cu_landmarks"), ends, strict=True)) if given is x else {}
        with FlopCounterMode(display=False) as counter:
            soft(*given, iterations=60, backend="triton", **packed).sum().backward()
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1]


def test_nothing_is_saved_without_gradients() -> None:
    x = [t.detach() for t in _inputs()]
    options = (None, None, None, 0, 0, 1.0, True, 2, "fp32")
    assert soft_attend(*x, *options, False)[1].numel() == 0
    assert soft_attend(*x, *options, True)[1].shape[0] == 4


@pytest.mark.parametrize(
    ("dim", "value_dim", "m", "dtype", "reason"),
    [
        (4, 4, 2, torch.float32, "head dim .*4"),
        (16, 8, 2, torch.float32, "v .*8.*16"),
        (16, 16, 2, torch.float64, "torch.float64"),
        (8, 8, 65, torch.float32, "65 landmarks"),
    ],
)
def test_what_the_kernels_do_not_take(
    dim: int, value_dim: int, m: int, dtype: torch.dtype, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sightline.backend.LANDMARKS", 64)  # instead of 4,096
    q, v, marks = (torch.randn(1, n, 1, d, device=DEVICE, dtype=dtype) for n, d in ((5, dim), (5, value_dim), (m, dim)))
    with pytest.raises(ValueError, match=rf"^soft_attention: backend='triton'.*{reason}.*'auto'"):
        soft_attention(q, v, marks, normalized=True, backend="triton")
    out = soft_attention(q, v, marks, normalized=True, iterations=1)  # auto falls back on the reference
    assert out.shape == (1, 5, 1, value_dim)


@both
def test_residual_falls_to_rounding(normalized: bool) -> None:
    marks = torch.randn(2, 9, 3, 24)
    residuals = [newton_residual(marks, normalized=normalized, iterations=n) for n in (1, 5, 20)]
    assert residuals[0].shape == (2, 3)
    assert (residuals[0] > residuals[1]).all()
    assert residuals[2].max() < 1e-5


@on_gpu
def test_cuda_graph() -> None:
    x = [t.detach() for t in _inputs()]
    grad = torch.randn(2, 13, 2, 16, device=DEVICE)

    def step() -> list[torch.Tensor]:
        leaves = [t.detach().requires_grad_() for t in x]
        out = soft(*leaves, backend="triton")
        return [out, *torch.autograd.grad(out, leaves, grad)]

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    x[0].copy_(torch.randn_like(x[0]))
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(captured, step(), strict=True))
