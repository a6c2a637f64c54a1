"""Blocks whose sums are one operator with the norms that follow compute what the blocks compute one by one."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from timm.layers import RmsNorm, SwiGLUPacked
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch.func import functional_call, grad, vmap
from torch.fx import GraphModule

from sightline import backend
from sightline.layers.attention import Attention, project
from sightline.layers.blocks import GeluMlp, PostNormBlock, PreNormBlock
from sightline.layers.conv_blocks import ConvMlp, ConvMlpBlock
from sightline.layers.core import Core, Grid, Place
from sightline.layers.mechanisms.inline import InlineCore
from sightline.layers.run_blocks import run_blocks
from sightline.layers.stripe_attention import StripeAttention
from sightline.layers.window_attention import WindowAttention
from sightline.ops import gelu as gelu_ops
from sightline.ops import norm as norm_ops
from sightline.ops.gelu import operator as gelu_operator
from tests.models.tiny import image, tiny
from tests.models.weights import enliven

from ..ops.cases import DEVICE

DIM, GRID = 16, (4, 4)
Gradients = dict[str, Tensor | None]


class Norms:
    """What the gradients of norms and of the sums before them are asked for."""

    def __init__(self) -> None:
        self.biases: list[bool] = []  # whether they include that of a bias
        self.views: list[str] = []  # of what there is a view with a gradient of its own
        self.later: list[bool] = []  # whether they include that of the bias before a GELU
        self.eager = False  # without compiling, which takes most of the time of a test


RUN = Norms()


@torch.library.custom_op("sightline_tests::add_norm_backward", mutates_args=())
def by_torch(
    total: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, d_total: Tensor | None, dy: Tensor,
    extra: Tensor | None, parts: Tensor | None, raw: bool, x: torch.dtype, update: torch.dtype,
    bias: torch.dtype | None, later: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The operator without its kernel, which Triton's interpreter runs slowly."""
    RUN.biases.append(bias is not None)
    RUN.views.append("" if extra is None else "sum" if raw else "norm")
    RUN.later.append(later is not None)
    grad = dy.float() if extra is None or raw else dy.float() + extra.float()
    dx, d_weight, d_shift = torch.ops.aten.native_layer_norm_backward(
        grad, total.float(), weight.shape, mean, rstd, weight, weight, [True] * 3
    )
    for added in (d_total, extra if raw else None):
        dx = dx if added is None else dx + added
    d_later = torch.empty(0) if parts is None else parts.sum(0).to(later)
    return dx.to(x), dx.to(update, copy=True), d_weight, d_shift, dx.sum((0, 1)).to(bias or x), d_later


@by_torch.register_fake
def _(total, mean, rstd, weight, d_total, dy, extra, parts, raw, x, update, bias, later):  # type: ignore[no-untyped-def]
    made = [torch.empty_like(total, dtype=each) for each in (x, update)]
    vectors = torch.empty_like(weight), torch.empty_like(weight), torch.empty_like(weight, dtype=bias or x)
    return *made, *vectors, torch.empty(0 if parts is None else parts.shape[1], dtype=later)


@torch.library.custom_op("sightline_tests::gelu_backward", mutates_args=())
def gelu_by_torch(x: Tensor, dy: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    """Likewise; the sums are all in the first part."""
    dx = torch.ops.aten.gelu_backward(dy, x, approximate="tanh" if tanh else "none")
    parts = torch.zeros(gelu_operator.sharers(x.shape[-1]), x.shape[-1])
    parts[0] = dx.sum((0, 1))
    return dx, parts


@gelu_by_torch.register_fake
def _(x, dy, tanh):  # type: ignore[no-untyped-def]
    return torch.empty_like(x), torch.empty(gelu_operator.sharers(x.shape[-1]), x.shape[-1])


def taken_on_a_gpu(x: Tensor) -> bool:
    return (RUN.eager or torch.compiler.is_dynamo_compiling()) and not backend.transformed()


@pytest.fixture
def norms(monkeypatch: pytest.MonkeyPatch) -> Norms:
    """The path that compiled models take on a GPU."""
    monkeypatch.setattr(backend, "fused_norm", taken_on_a_gpu)
    monkeypatch.setattr(norm_ops, "add_norm_backward", by_torch)
    monkeypatch.setattr(gelu_ops, "gelu_backward", gelu_by_torch)
    RUN.biases.clear()
    RUN.later.clear()
    RUN.views.clear()
    return RUN


class Run(nn.Module):
    """Blocks on a grid of 4 x 4 tokens."""

    def __init__(self, *blocks: nn.Module, prefix: int = 0, save_memory: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.prefix, self.save_memory = prefix, save_memory
        for parameter in enliven(self).parameters():
            parameter.requires_grad_()

    def forward(self, x: Tensor) -> Tensor:
        take = {1} if len(self.blocks) > 2 else set()
        x, outputs = run_blocks(self.blocks, x, GRID, self.prefix, save_memory=self.save_memory, take=take)
        return torch.cat([x, *outputs.values()])


def step(run: nn.Module, x: Tensor, call: Callable[[Tensor], Tensor] | None = None) -> tuple[Tensor, Gradients]:
    """Output and gradients of the blocks, called in another way if there is one."""
    run.zero_grad()
    x = x.clone().requires_grad_()
    out = (run if call is None else call)(x)
    (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
    return out.detach(), {"x": x.grad, **{name: value.grad for name, value in run.named_parameters()}}


def fused_step(run: nn.Module, x: Tensor, compiled: bool = False) -> tuple[Tensor, Gradients]:
    torch._dynamo.reset()
    RUN.eager = not compiled
    try:
        return step(run, x, torch.compile(run, backend="aot_eager", fullgraph=True) if compiled else None)
    finally:
        RUN.eager = False


def compare(run: Run, compiled: bool = False) -> None:
    x = torch.randn(2, GRID[0] * GRID[1] + run.prefix, DIM)
    expected, plain = step(run, x)
    out, fused = fused_step(run, x, compiled)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)
    for name, gradient in plain.items():
        assert gradient is not None, name
        atol = 1e-4 * gradient.abs().max().item()
        torch.testing.assert_close(fused[name], gradient, rtol=1e-3, atol=atol, msg=lambda m, n=name: f"{n}: {m}")


def plain(mechanism: str = "softmax", **options: Any) -> PreNormBlock:
    return PreNormBlock(DIM, Attention(DIM, 2, mechanism), **options)


def windows(mechanism: str, window: int) -> PreNormBlock:
    return PreNormBlock(DIM, WindowAttention(DIM, 2, mechanism, window=window, shift=True))


def stripes(mechanism: str) -> PreNormBlock:
    return PreNormBlock(DIM, StripeAttention(DIM, 2, mechanism, stripe=2), raw_context=True)


# Two blocks; whether the sums have a bias to give a gradient; and of what there is a view, from which InLine's residual
# gets its weights: the norm, the sum, or nothing in softmax and in windows.
CASES: dict[str, tuple[Callable[[], nn.Module], bool, str]] = {
    "inline": (lambda: plain("inline"), True, "norm"),
    "softmax": (plain, True, ""),
    "layer scale": (lambda: plain(init_values=0.1), False, ""),
    "gated mlp": (lambda: plain(mlp=SwiGLUPacked(DIM, 2 * DIM)), True, ""),
    "convolution": (lambda: ConvMlpBlock(DIM, Attention(DIM, 2, "softmax"), mlp=ConvMlp(DIM, DIM)), True, ""),
    "whole map": (lambda: windows("inline", 0), True, "norm"),
    "windows": (lambda: windows("inline", 3), True, ""),
    "softmax in windows": (lambda: windows("softmax", 3), True, ""),
    "stripes": (lambda: stripes("inline"), True, "sum"),
    "softmax in stripes": (lambda: stripes("softmax"), True, ""),
    "reduced map": (lambda: PreNormBlock(DIM, Attention(DIM, 2, "softmax", sr_ratio=2)), True, ""),
}


COMPILED = {"inline", "convolution", "windows", "stripes"}


@pytest.mark.parametrize("case", CASES)
def test_same_gradients(case: str, norms: Norms) -> None:
    make, bias, view = CASES[case]
    compare(Run(make(), make()), compiled=case in COMPILED)
    assert norms.views == ["", view, ""]  # from the last norm on; the first of all follows no sum
    assert norms.biases == [bias] * 3


def test_norms_after_the_sums(norms: Norms) -> None:
    """Those of the attention are read by the MLP, a view with a gradient of its own."""
    compare(Run(*(PostNormBlock(DIM, Attention(DIM, 2, "soft")) for _ in range(2))), compiled=True)
    assert norms.views == ["", "norm", "", "norm"]
    assert norms.biases == [True] * 4


def test_blocks_of_both_kinds(norms: Norms) -> None:
    """A sum that the next block would have taken is made before it; what a hook changes keeps its bias."""
    run = Run(plain(), *(PostNormBlock(DIM, Attention(DIM, 2, "softmax")) for _ in range(2)), plain())
    run.blocks[1].mlp.fc2.register_forward_hook(doubled)  # type: ignore[union-attr]
    run.blocks[2].norm1.register_forward_hook(doubled)  # type: ignore[union-attr]
    compare(run)
    assert norms.biases == [True, False, True, True]


def test_leading_tokens_and_tokens_on_the_way(norms: Norms) -> None:
    """The tokens after the second of three blocks are made there, and the third begins with a norm alone."""
    compare(Run(plain(), plain(), plain(), prefix=1))
    assert norms.biases == [True] * 4


def test_what_leaves_out_images_or_tokens_keeps_its_bias(norms: Norms) -> None:
    fused_step(Run(plain(), plain(drop_path=0.5)), torch.randn(2, 16, DIM))
    assert norms.biases == [False, True, True]
    norms.biases.clear()
    dropped = PreNormBlock(DIM, Attention(DIM, 2, "softmax", proj_drop=0.5), drop=0.5)
    fused_step(Run(dropped, plain()), torch.randn(2, 16, DIM))
    assert norms.biases == [True, False, False]


def test_blocks_with_hooks_and_other_norms_are_called(norms: Norms) -> None:
    run, called = Run(plain(), plain(), plain(norm=RmsNorm), plain()), []
    run.blocks[1].register_forward_hook(lambda *_: called.append(1))
    compare(run)
    assert called
    assert norms.biases == [True, True]  # the second norms of the first block and of the last


def doubled(module: nn.Module, args: object, out: Tensor) -> Tensor:
    return 2 * out


AFTER = ["attn", "attn.proj", "attn.proj_drop", "ls1", "drop_path1", "mlp", "mlp.fc2", "mlp.drop2", "ls2", "drop_path2"]


def test_what_a_hook_changes_keeps_its_bias(norms: Norms) -> None:
    """Each of ten blocks has a hook in one of its branches, and the last has none."""
    run = Run(*(plain() for _ in AFTER), plain())
    for block, name in zip(run.blocks, AFTER, strict=False):
        block.get_submodule(name).register_forward_hook(doubled)
    compare(run)
    attention, mlp = [name in AFTER[5:] for name in AFTER], [name in AFTER[:5] for name in AFTER]
    expected = [kept for both in zip(attention, mlp, strict=True) for kept in both]
    del expected[3]  # the tokens after the second block are made there
    assert norms.biases[::-1] == [*expected, True]


class SquareMlp(GeluMlp):
    def forward(self, x: Tensor) -> Tensor:
        return self.drop2(self.fc2(self.act(self.fc1(x)) ** 2))


class Fed(PreNormBlock):
    def feed_forward(self, x: Tensor, grid: Grid) -> Tensor:
        return 2 * super().feed_forward(x, grid)


def test_only_plain_mlps_leave_the_gradient_of_a_bias_to_the_norm(norms: Norms) -> None:
    """One with GELU, or its approximation, after a linear layer; nothing in it or of the block's is changed."""
    hooked, replaced = plain(), plain()
    hooked.mlp.act.register_forward_hook(doubled)
    replaced.mlp.fc1.forward = (lambda forward: lambda x: 2 * forward(x))(replaced.mlp.fc1.forward)
    without = PreNormBlock(DIM, Attention(DIM, 2, "softmax"), mlp=GeluMlp(DIM, 4 * DIM, bias=False))
    relu = PreNormBlock(DIM, Attention(DIM, 2, "softmax"), mlp=GeluMlp(DIM, 4 * DIM, act_layer=nn.ReLU))
    gated = PreNormBlock(DIM, Attention(DIM, 2, "softmax"), mlp=SwiGLUPacked(DIM, 4 * DIM))
    convolved = ConvMlpBlock(DIM, Attention(DIM, 2, "softmax"), mlp=ConvMlp(DIM, 4 * DIM))
    tanh = PreNormBlock(
        DIM, Attention(DIM, 2, "softmax"), mlp=GeluMlp(DIM, 4 * DIM, act_layer=partial(nn.GELU, approximate="tanh"))
    )
    fed = Fed(DIM, Attention(DIM, 2, "softmax"))
    square = PreNormBlock(DIM, Attention(DIM, 2, "softmax"), mlp=SquareMlp(DIM, 4 * DIM))
    run = Run(plain(), hooked, replaced, without, relu, gated, convolved, tanh, fed, square, plain(drop=0.0))
    compare(run, compiled=True)
    second_norms = norms.later[::-1][::2]
    assert second_norms[:1] == [True]
    assert norms.later.count(True) == 3


def test_bias_before_gelu_after_a_norm(norms: Norms) -> None:
    compare(Run(*(PostNormBlock(DIM, Attention(DIM, 2, "softmax")) for _ in range(2))), compiled=True)
    assert norms.later == [False, True] * 2


class Halved(PreNormBlock):
    def forward(self, x: Tensor, grid: Grid, prefix: int = 0, key_mask: Tensor | None = None) -> Tensor:
        return super().forward(x, grid, prefix, key_mask) / 2


def test_a_forward_of_its_own_is_called(norms: Norms) -> None:
    """That of a subclass, or one that another library has put in the place of a block's or of a layer's."""
    run = Run(Halved(DIM, Attention(DIM, 2, "softmax")), plain(), plain(), plain())
    for module in (run.blocks[1], run.blocks[2].attn.proj):  # type: ignore[union-attr]
        module.forward = (lambda forward: lambda *args, **more: 2 * forward(*args, **more))(module.forward)  # type: ignore[union-attr, operator]
    compare(run)
    assert norms.biases == [True, True, False]


def test_transforms_and_exported_graphs(norms: Norms) -> None:
    """Gradients per example, and those of a graph for training, which are right without the operator."""
    run, x = Run(plain(), plain()), torch.randn(3, 16, DIM)

    def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(run, weights, (x[None],)).square().sum()

    weights = {name: value.detach() for name, value in run.named_parameters()}
    per_example = vmap(grad(loss), in_dims=(None, 0))
    torch._dynamo.reset()
    found, expected = torch.compile(per_example, backend="aot_eager")(weights, x), per_example(weights, x)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-4)
    exported = torch.export.export(run, (x,), strict=True).module()
    exported(x).square().sum().backward()
    run(x).square().sum().backward()
    for name, value in run.named_parameters():
        torch.testing.assert_close(exported.get_parameter(name).grad, value.grad, rtol=1e-4, atol=1e-4)


class Joined:
    """Blocks whose attention was one operator with its norm and sums, and whether it took a sum before it."""

    def __init__(self) -> None:
        self.sums: list[bool] = []


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> Joined:
    """The path of inference on a GPU, by plain torch code in the place of the operator."""
    calls = Joined()

    def operator(
        core: Core, x: Tensor, update: Any, norm: nn.Module, qkv: nn.Linear, proj: nn.Linear, place: Place
    ) -> Tensor:
        calls.sums.append(update is not None)
        x = x if update is None else x + update
        y = norm(x)
        return x + proj(core(*project(qkv, core.num_heads, y), replace(place, context=y)).flatten(2))

    monkeypatch.setattr(InlineCore, "joined", operator)
    monkeypatch.setattr(backend, "whole_block", lambda x: not torch.is_grad_enabled())
    return calls


def infer(run: Run, *, compiled: bool = False) -> None:
    """Compare with the blocks called one by one."""
    x = torch.randn(2, GRID[0] * GRID[1] + run.prefix, DIM)
    run.train(False)
    expected = run(x)  # with a gradient, which the operator does not have
    torch._dynamo.reset()
    with torch.no_grad():
        out = (torch.compile(run, backend="aot_eager", fullgraph=True) if compiled else run)(x)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("compiled", [False, True])
def test_attention_joins_its_norm_and_sums(compiled: bool, joined: Joined) -> None:
    """The sum before is left to the next block, except where the tokens after a block are asked for."""
    infer(Run(*(plain("inline", drop_path=0.5) for _ in range(4)), prefix=1), compiled=compiled)
    assert joined.sums == [False, True, False, True]


def test_attention_that_is_called(joined: Joined) -> None:
    """Of other mechanisms and norms, with layer scale, dropout, hooks, or a call or a block of another kind."""
    others = [plain("softmax"), plain("inline", norm=RmsNorm), plain("inline", init_values=0.1)]
    changed = [plain("inline") for _ in range(5)]
    changed[0].attn.qkv.register_forward_hook(lambda *_: None)
    changed[1].register_forward_hook(doubled)
    changed[2].norm1.register_forward_hook(doubled)
    changed[3].attn.forward = (lambda forward: lambda *a, **more: 2 * forward(*a, **more))(changed[3].attn.forward)
    changed[4].compile(backend="eager")
    infer(Run(*others, plain("inline"), Halved(DIM, Attention(DIM, 2, "inline")), *changed, plain("inline")))
    assert joined.sums == [False, False]
    joined.sums.clear()
    run = Run(plain("inline", drop_path=0.5), PreNormBlock(DIM, Attention(DIM, 2, "inline", proj_drop=0.5)))
    with torch.no_grad():
        run(torch.randn(2, 16, DIM))  # in training mode
        run.train(False)(torch.randn(2, 16, DIM))
    assert joined.sums == [False, True]
    joined.sums.clear()
    run.blocks[1].attn.proj_drop = nn.Identity()  # type: ignore[union-attr]
    infer(run)
    assert joined.sums == [False, True]


def test_every_compiled_model_runs_its_own_blocks(joined: Joined) -> None:
    """One after the other, as a program does that compares them."""
    torch._dynamo.reset()
    runs = {
        "plain": Run(plain("inline")),
        "layer scale": Run(plain("inline", init_values=0.1)),
        "context before the norm": Run(plain("inline", raw_context=True)),
        "norms of queries": Run(PreNormBlock(DIM, Attention(DIM, 2, "inline", qk_norm=nn.LayerNorm))),
        "hook": Run(plain("inline")),
        "hook on attention": Run(plain("inline")),
    }
    runs["hook"].blocks[0].norm1.register_forward_hook(doubled)  # type: ignore[union-attr]
    runs["hook on attention"].blocks[0].attn.register_forward_hook(doubled)  # type: ignore[union-attr]
    x = torch.randn(2, 16, DIM)
    for name, run in runs.items():
        expected = run.train(False)(x)
        with torch.no_grad():
            out = torch.compile(run, backend="aot_eager")(x)
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")
    assert joined.sums == [False]


def test_a_sum_that_is_wider_than_the_tokens(joined: Joined) -> None:
    class Wide(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.double() * 1e-9

    run = Run(plain("inline", mlp=Wide()), plain("inline")).train(False)
    run.blocks[1].double()
    x = torch.randn(2, 16, DIM)
    expected = run(x)
    with torch.no_grad():
        out = run(x)
    assert (out.dtype, joined.sums) == (torch.float64, [False])
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)


def test_checkpointing(norms: Norms) -> None:
    compare(Run(plain(), plain(), save_memory=True))
    assert norms.biases == []


def test_by_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiled step of autocast, as it runs on a GPU, next to one without the operator."""
    monkeypatch.setattr(backend, "fused_norm", taken_on_a_gpu)
    monkeypatch.setattr(gelu_operator, "PROGRAMS", 6)
    launches = Counter[bool]()
    taken = True

    def count(graph: GraphModule, _: object) -> GraphModule:
        names = (str(node.target) for node in graph.graph.nodes)
        launches[taken] += sum("add_norm" in name or "triton_kernel" in name for name in names)
        return graph

    model, x = tiny("deit", depths=1).to(DEVICE), image().to(DEVICE)
    found: dict[bool, dict[str, Tensor]] = {}
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
    assert launches[True] > launches[False]
    for name, gradient in found[False].items():
        assert (found[True][name] - gradient).norm() <= 0.05 * gradient.norm(), name
