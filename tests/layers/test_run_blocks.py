"""Blocks whose sums are one operator with the norms that follow compute what the blocks compute one by one."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule

from sightline import backend
from sightline.ops import norm as norm_ops
from tests.models.tiny import image, tiny

from ..ops.cases import DEVICE

Gradients = dict[str, Tensor | None]


class Norms:
    """What the gradients of norms and of the sums before them are asked for."""

    def __init__(self) -> None:
        self.biases: list[bool] = []  # whether they include that of a bias
        self.views: list[str] = []  # of what there is a view with a gradient of its own


RUN = Norms()


@torch.library.custom_op("sightline_tests::add_norm_backward", mutates_args=())
def by_torch(
    total: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, d_total: Tensor, dy: Tensor, extra: Tensor | None,
    raw: bool, x: torch.dtype, update: torch.dtype, bias: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The operator without its kernel, which Triton's interpreter runs slowly."""
    RUN.biases.append(bias is not None)
    RUN.views.append("" if extra is None else "sum" if raw else "norm")
    grad = dy.float() if extra is None or raw else dy.float() + extra.float()
    dx, d_weight, d_shift = torch.ops.aten.native_layer_norm_backward(
        grad, total.float(), weight.shape, mean, rstd, weight, weight, [True] * 3
    )
    dx = dx + d_total if extra is None or not raw else dx + d_total + extra
    return dx.to(x), dx.to(update, copy=True), d_weight, d_shift, dx.sum((0, 1)).to(bias or x)


@by_torch.register_fake
def _(total, mean, rstd, weight, d_total, dy, extra, raw, x, update, bias):  # type: ignore[no-untyped-def]
    made = [torch.empty_like(total, dtype=each) for each in (x, update)]
    return *made, torch.empty_like(weight), torch.empty_like(weight), torch.empty_like(weight, dtype=bias or x)


@pytest.fixture
def norms(monkeypatch: pytest.MonkeyPatch) -> Norms:
    """The path that compiled models take on a GPU."""
    monkeypatch.setattr(backend, "fused_norm", lambda x: torch.compiler.is_dynamo_compiling())
    monkeypatch.setattr(norm_ops, "add_norm_backward", by_torch)
    RUN.biases.clear()
    RUN.views.clear()
    return RUN


def step(model: nn.Module, x: Tensor, compiled: bool) -> tuple[Tensor, Gradients]:
    torch._dynamo.reset()
    model.zero_grad()
    out = (torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model)(x)
    out.square().sum().backward()
    return out.detach(), {name: value.grad for name, value in model.named_parameters()}


def compare(model: nn.Module, x: Tensor) -> None:
    expected, plain = step(model, x, compiled=False)
    out, fused = step(model, x, compiled=True)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)
    for name, gradient in plain.items():
        assert gradient is not None, name
        atol = 1e-4 * gradient.abs().max().item()
        torch.testing.assert_close(fused[name], gradient, rtol=1e-3, atol=atol, msg=lambda m, n=name: f"{n}: {m}")


# The model, its arguments, how many norms follow a sum, how many of these sums have a bias to give a gradient, and of
# what the residual's weights are made: the tokens of the norm or of the sum, nothing in softmax and in windows.
CASES: dict[str, tuple[str, dict[str, Any], int, int, set[str]]] = {
    "deit": ("deit", {"depths": 2}, 3, 3, {"", "norm"}),
    "layer_scale": ("deit", {"depths": 2, "init_values": 0.1}, 3, 0, {"", "norm"}),
    "no_bias": ("deit", {"depths": 2, "proj_bias": False, "swiglu_mlp": True}, 3, 0, {"", "norm"}),
    "softmax": ("deit", {"depths": 2, "attention": "softmax"}, 3, 3, {""}),
    "pvt": ("pvt", {}, 4, 4, {""}),
    "swin": ("swin", {"depths": (2, 1, 1, 2)}, 8, 8, {"", "norm"}),
    "windows": ("swin", {"attention": "inline", "map_window": 4, "depths": (2, 1, 1, 1)}, 6, 6, {""}),
    "cswin": ("cswin", {"depths": (2, 1, 1, 1)}, 6, 6, {"", "sum"}),
    "hybrid": ("hybrid", {"depths": (0, 0, 2, 0), "conv_depths": (1, 1, 1, 1)}, 3, 3, {"", "norm"}),
}


@pytest.mark.parametrize("case", CASES)
def test_same_gradients(case: str, norms: Norms) -> None:
    family, arguments, count, biases, views = CASES[case]
    compare(tiny(family, **arguments), image())
    assert (len(norms.biases), sum(norms.biases), set(norms.views)) == (count, biases, views)


def test_stochastic_depth(norms: Norms) -> None:
    """A bias that some images drop is not left to the sum."""
    model = tiny("deit", drop_path_rate=0.5).train()
    step(model, image(), compiled=True)
    assert norms.biases == [False, False, False, True, True]  # from the last on; the first block drops nothing


def test_blocks_with_hooks_and_other_norms_are_called(norms: Norms) -> None:
    model, called = tiny("deit"), []
    model.blocks[1].register_forward_hook(lambda *_: called.append(1))  # type: ignore[union-attr, index]
    compare(model, image())
    assert len(called) >= 2
    assert len(norms.biases) == 2  # the second norms of the other two blocks
    norms.biases.clear()
    compare(tiny("deit", depths=1, norm_layer="rmsnorm"), image())
    assert norms.biases == []


def test_checkpointing_and_outputs_on_the_way(norms: Norms) -> None:
    model, x = tiny("deit"), image()
    model.set_grad_checkpointing(True)  # type: ignore[operator]
    compare(model, x)
    model.set_grad_checkpointing(False)  # type: ignore[operator]

    def features(model: nn.Module, x: Tensor) -> Tensor:
        return torch.cat([each.flatten(1) for each in model.forward_intermediates(x, intermediates_only=True)], 1)  # type: ignore[operator]

    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(features, backend="aot_eager")(model, x), features(model, x))


def test_by_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiled step of autocast, as it runs on a GPU, which has the operator in its backward pass."""
    if not torch.cuda.is_available():
        monkeypatch.setattr(backend, "fused_norm", lambda x: torch.compiler.is_dynamo_compiling())
    seen: Counter[str] = Counter()

    def count(graph: GraphModule, _: object) -> GraphModule:
        seen.update(str(node.target) for node in graph.graph.nodes)
        return graph

    model, x = tiny("deit", depths=2).to(DEVICE), image().to(DEVICE)
    found = {}
    for taken in (True, False):
        if not taken:
            monkeypatch.setattr(backend, "fused_norm", lambda x: False)
        torch._dynamo.reset()
        model.zero_grad()
        compiler = aot_autograd(fw_compiler=lambda graph, _: graph, bw_compiler=count)
        with torch.autocast(DEVICE, torch.bfloat16):
            out = torch.compile(model, backend=compiler, fullgraph=True)(x)
        out.float().square().sum().backward()
        found[taken] = {name: value.grad.clone() for name, value in model.named_parameters()}
    for name, gradient in found[False].items():
        assert (found[True][name] - gradient).norm() <= 0.05 * gradient.norm(), name
    assert sum(number for name, number in seen.items() if "add_norm_backward" in name or "triton_kernel" in name) > 0
