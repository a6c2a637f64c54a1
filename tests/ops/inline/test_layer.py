"""InLine attention with the weights of its residual made on the way, against the layers it stands for."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from sightline import backend
from sightline.layers.attention import Attention
from sightline.layers.core import Place
from sightline.layers.mechanisms import inline as inline_mechanism
from sightline.layers.mechanisms.inline import InlineCore, ResidualWeights
from sightline.ops import inline_attention
from sightline.ops.common.launching import forget
from sightline.ops.inline.layer import inline_from_packed, inline_from_parts, inline_projected
from sightline.ops.linear import launch, plan

from ..cases import DEVICE, GPU, TOLERANCE, assert_close, on_gpu, with_dtypes

# images, grid, prefix, heads, head dim
SHAPES = [(3, (3, 4), 1, 2, 16), (1, (1, 1), 0, 1, 8), (2, (2, 5), 0, 3, 24), (2, (1, 45), 1, 2, 32)]
SHAPES += [(2, (2, 35), 0, 1, 16)]  # three strips of 16 columns
if GPU:
    SHAPES += [(128, (14, 14), 1, 6, 32), (4, (128, 128), 1, 6, 32), (3, (40, 41), 0, 2, 128)]
    SHAPES += [(16, (1, 1024), 0, 2, 32)]


def _layer(heads: int, dim: int, dtype: torch.dtype = torch.float32) -> ResidualWeights:
    torch.manual_seed(0)
    return ResidualWeights(heads * dim, heads).to(DEVICE, dtype)


def _exact(
    layer: ResidualWeights, qkv: torch.Tensor, x: torch.Tensor, grid: tuple[int, int], prefix: int
) -> torch.Tensor:
    """By the reference: the weights of the layers, then attention."""
    q, k, v = qkv.unflatten(2, (3, layer.num_heads, -1)).unbind(2)
    return inline_attention(q, k, v, residual=layer(x), grid=grid, prefix=prefix, backend="torch").flatten(2)


@pytest.fixture
def _no_plans() -> Iterator[None]:
    forget()
    yield
    forget()


@pytest.fixture
def _poison() -> Iterator[None]:
    """Fresh memory is NaN, so that a sum that no kernel writes shows."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


WAYS = [(way, *case) for way in ("whole", "apart", "cut") for case in with_dtypes(SHAPES)]
WAYS.remove(("cut", SHAPES[1], torch.float32))  # a single token cannot be cut


@pytest.mark.slow
@pytest.mark.usefixtures("_no_plans", "_poison")
@pytest.mark.parametrize(("way", "shape", "dtype"), WAYS)
def test_output_and_gradients(way: str, shape: tuple, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "cut":
        monkeypatch.setattr(plan, "SHORT", 8)
        monkeypatch.setattr(plan, "CHUNK", {True: 8, False: 8})
        monkeypatch.setattr(plan, "LINE", 8)
    elif way == "apart":
        monkeypatch.setattr(plan, "TINY", 0)
    check(shape, dtype)


@pytest.mark.slow
@pytest.mark.usefixtures("_no_plans")
def test_more_images_than_are_taken_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "ALONE", 16)
    check((17, (1, 1), 0, 1, 8), torch.float32)


@pytest.mark.parametrize("height", [5, 8])
@pytest.mark.usefixtures("_no_plans")
def test_more_parts_than_are_taken_together(height: int, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = launch.empty

    def followed_by_nan(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        size = math.prod(shape)
        return empty((2 * size,), dtype, device).fill_(torch.nan)[:size].view(*shape)

    monkeypatch.setattr(launch, "empty", followed_by_nan)
    monkeypatch.setattr(plan, "TINY", 0)
    monkeypatch.setattr(plan, "ROWS", 1)
    check((3, (height, 2), 0, 1, 8), torch.float32)


@pytest.mark.parametrize("limit", [100, 8])
@pytest.mark.usefixtures("_no_plans")
def test_both_ways_of_a_graph_for_any_size(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All kernels are launched, for few tokens and for many; those that do not apply have no programs."""
    (grid, prefix, heads, dim), channels = ((3, 4), 1, 2, 16), 32
    layer, x = _layer(heads, dim), torch.randn(2, 13, channels, device=DEVICE)
    qkv = torch.randn(2, 13, 3 * channels, device=DEVICE)
    ran: list[str] = []
    run = launch.launch

    def note(kernel: Any, size: tuple[int, ...], args: tuple, constants: Any) -> None:
        compiled_ahead = any(isinstance(t, torch.Tensor) and t.is_meta for t in args)
        if 0 not in size and not compiled_ahead:
            ran.append(kernel.fn.__name__)
        run(kernel, size, args, constants)

    monkeypatch.setattr(launch, "launch", note)
    monkeypatch.setattr(launch, "is_symbolic", lambda *sizes: True)
    monkeypatch.setattr(plan, "SHORT", limit)
    monkeypatch.setattr(plan, "CHUNK", {True: 8, False: 8})
    with torch.no_grad():
        out = inline_from_packed(qkv, x, layer.layers(), heads, grid, prefix, "identity")
        assert_close("output", out, _exact(layer, qkv, x, grid, prefix), TOLERANCE[torch.float32])
    few, many = ["forward_short"], ["forward_partial", "forward_finish", "forward_write"]
    assert ran == (few if limit == 100 else many)


def check(shape: tuple, dtype: torch.dtype) -> None:
    """Output and every gradient, from a packed projection and from q, k and v, against the reference in float64."""
    images, grid, prefix, heads, dim = shape
    tokens, channels = grid[0] * grid[1] + prefix, heads * dim
    layer = _layer(heads, dim, dtype)
    exact = _layer(heads, dim).cpu().double()
    exact.load_state_dict(layer.state_dict())
    qkv, x = (torch.randn(images, tokens, n * channels, device=DEVICE).to(dtype).requires_grad_() for n in (3, 1))
    bias = torch.zeros(3 * channels, device=DEVICE, dtype=dtype, requires_grad=True)  # contained in qkv already
    wide = [t.detach().cpu().double().requires_grad_() for t in (qkv, x, bias)]
    want = _exact(exact, wide[0] + wide[2], wide[1], grid, prefix)
    got = inline_from_packed(qkv, x, layer.layers(), heads, grid, prefix, "identity", bias)
    q, k, v = qkv.unflatten(2, (3, heads, dim)).unbind(2)
    parts = inline_from_parts(q, k, v, x, layer.layers(), grid, prefix, "identity")
    grad = torch.randn_like(want)
    wanted = torch.autograd.grad(want, (*wide, *exact.parameters()), grad)
    names = ("qkv", "tokens", "bias", *(name for name, _ in exact.named_parameters()))
    for out in (got, parts.flatten(2)):
        assert out.dtype == dtype
        assert_close("output", out.cpu(), want, TOLERANCE[dtype])
        inputs = (qkv, x, bias, *layer.parameters())
        grads = torch.autograd.grad(out, inputs, grad.to(DEVICE, dtype), allow_unused=True)
        assert (grads[2] is None) == (out is not got)
        for name, g, w in zip(names, grads, wanted, strict=True):
            if g is None:
                continue
            assert g.shape == w.shape
            assert g.dtype == dtype
            assert_close(name, g.cpu(), w, TOLERANCE[dtype])


def test_tokens_apart() -> None:
    """A view with room between tokens and images is read in place, and what lies between is not."""
    layer, qkv = _layer(2, 16), torch.randn(3, 10, 96, device=DEVICE)
    room = torch.full((3, 12, 48), float("nan"), device=DEVICE)
    x = room[:, 1:11, 8:40]
    x.copy_(torch.randn(3, 10, 32, device=DEVICE))
    outs = [inline_from_packed(qkv, t, layer.layers(), 2, (2, 5), 0, "identity") for t in (x, x.contiguous())]
    assert torch.equal(*outs)


def test_same_bits_in_any_batch() -> None:
    layer = _layer(2, 16)
    qkv, x = torch.randn(20, 10, 96, device=DEVICE), torch.randn(20, 10, 32, device=DEVICE)
    whole = inline_from_packed(qkv, x, layer.layers(), 2, (2, 5), 0, "identity")
    for some in (slice(3, 4), slice(7, 19)):
        part = inline_from_packed(qkv[some], x[some], layer.layers(), 2, (2, 5), 0, "identity")
        assert torch.equal(part, whole[some])


@pytest.mark.slow
def test_compile_without_graph_breaks() -> None:
    layer = _layer(2, 16)
    qkv, x = (torch.randn(3, 10, n * 32, device=DEVICE, requires_grad=True) for n in (3, 1))

    def run(qkv: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return inline_from_packed(qkv, x, layer.layers(), 2, (2, 5), 0, "identity")

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    want, got = run(qkv, x), compiled(qkv, x)
    assert torch.equal(want, got)
    first, second = (torch.autograd.grad(out.square().sum(), (qkv, x)) for out in (want, got))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@on_gpu
def test_autocast() -> None:
    core = InlineCore(192, 6).to(DEVICE)
    x, qkv = torch.randn(4, 197, 192, device=DEVICE), torch.nn.Linear(192, 576).to(DEVICE)
    with torch.autocast("cuda", torch.bfloat16):
        got = core.from_tokens(x, qkv, Place((14, 14), x, 1))
    assert got.dtype == torch.bfloat16
    want = _exact(core.residual, qkv(x), x, (14, 14), 1)
    assert_close("output", got.float(), want.double(), 1e-2)


# grid, prefix, heads, head dim, phi, residual
PROJECTED = [
    ((3, 17), 1, 2, 16, "identity", True),
    ((9, 18), 0, 3, 24, "identity", True),
    ((2, 40), 2, 2, 16, "relu", True),
    ((5, 7), 1, 2, 32, "elu1", False),
    ((2, 3), 1, 9, 32, "identity", True),  # too many channels to project the output on the way
    ((1, 70), 16, 1, 128, "identity", False),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        (c, t)
        for c in PROJECTED
        for t in (torch.bfloat16, torch.float16)
        if GPU or t == torch.bfloat16 or c == PROJECTED[0]
    ],
)
def test_with_projections(case: tuple, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    grid, prefix, heads, dim, phi, residual = case
    torch.manual_seed(0)
    spec = f"inline(phi={phi}, residual={str(residual).lower()})"
    layer = Attention(heads * dim, heads, spec, qkv_bias=dim != 24).to(DEVICE, dtype)
    x = torch.randn(2, grid[0] * grid[1] + prefix, heads * dim, device=DEVICE).to(dtype)
    made = layer.core.residual.layers() if residual else None
    with torch.no_grad():
        got = inline_projected(x, layer.qkv, layer.proj, made, heads, grid, prefix, phi)
        monkeypatch.setenv(backend.VARIABLE, "torch")
        want = layer.cpu().double()(x.cpu().double(), grid, prefix)
    assert got.dtype == dtype
    assert_close("output", got.cpu(), want, TOLERANCE[dtype])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "dtype", "stream"),
    [
        (c, t, s)
        for c in PROJECTED
        if c[2] * c[3] <= backend.FOLDED
        for t, s in (
            (torch.bfloat16, torch.bfloat16), (torch.float16, torch.float16), (torch.bfloat16, torch.float32)
        )  # Triton's interpreter does not round to bfloat16 but cuts off
        if GPU or t == s == torch.float16 or (c == PROJECTED[0] and s == torch.float32)
    ],
)  # fmt: skip
def test_with_norm_and_sums(
    case: tuple, dtype: torch.dtype, stream: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens plus an update, and the layer of their norm added to that; tokens in float32 are those of autocast."""
    grid, prefix, heads, dim, phi, residual = case
    torch.manual_seed(0)
    spec = f"inline(phi={phi}, residual={str(residual).lower()})"
    norm = torch.nn.LayerNorm(heads * dim, eps=1e-2).to(DEVICE, stream)
    for name in ("weight", "bias"):  # every other number of a tensor
        setattr(norm, name, torch.nn.Parameter(torch.randn(heads * dim, 2, device=DEVICE).to(stream)[:, 0]))
    layer = Attention(heads * dim, heads, spec, qkv_bias=dim != 24).to(DEVICE, stream)
    with torch.no_grad():
        layer.proj.weight *= 8  # more is added than there is, whose rounding errors would hide those of the layer
    x, update = torch.randn(2, 2, grid[0] * grid[1] + prefix, heads * dim, device=DEVICE)
    x, update = x.to(stream), update.to(dtype).mT.contiguous().mT  # which is not contiguous itself
    made = layer.core.residual.layers() if residual else None
    for added in (None, update):
        monkeypatch.setenv(backend.VARIABLE, "triton")
        with torch.no_grad(), torch.autocast(DEVICE, dtype, enabled=stream != dtype):
            got = inline_projected(x, layer.qkv, layer.proj, made, heads, grid, prefix, phi, norm, added)
        monkeypatch.setenv(backend.VARIABLE, "torch")
        total = x if added is None else x + added
        with torch.no_grad():
            normed = norm.double()(total.double()).to(dtype)  # as linear layers take it
            want = layer.cpu().double()(normed.cpu().double(), grid, prefix)
        norm, layer = norm.to(DEVICE, stream), layer.to(DEVICE, stream)
        made = layer.core.residual.layers() if residual else None
        assert got.dtype == stream
        assert_close("what is added", got.cpu().double() - total.cpu().double(), want, TOLERANCE[dtype])


def test_projections_under_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters stay in float32, and the output is that of linear layers under autocast."""
    monkeypatch.setenv(backend.VARIABLE, "triton")
    layer, x = Attention(32, 2, "inline").to(DEVICE), torch.randn(2, 13, 32, device=DEVICE)
    with torch.no_grad(), torch.autocast(DEVICE, torch.bfloat16):
        assert backend.whole_layer(x, layer.qkv.weight, 16, 1)
        got = layer(x, (3, 4), 1)
    monkeypatch.setenv(backend.VARIABLE, "torch")
    assert got.dtype == torch.bfloat16
    assert_close("output", got.cpu(), layer.cpu().double()(x.cpu().double(), (3, 4), 1), TOLERANCE[torch.bfloat16])


def test_gradients_of_a_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bias of the projection has its gradient from the operator, and every parameter the right one."""
    layer, x = Attention(32, 2, "inline").to(DEVICE), torch.randn(2, 13, 32, device=DEVICE)
    found = {}
    for name in ("triton", "torch"):
        monkeypatch.setenv(backend.VARIABLE, name)
        kind = torch.float32 if name == "triton" else torch.float64
        layer, x = layer.to(kind), x.detach().to(kind).requires_grad_()
        out = layer(x, (3, 4), 1)
        found[name] = torch.autograd.grad(out.square().sum(), (x, *layer.parameters()))
    names = ["tokens", *(name for name, _ in layer.named_parameters())]
    for name, got, want in zip(names, found["triton"], found["torch"], strict=True):
        assert_close(name, got, want, TOLERANCE[torch.float32])


def test_who_takes_the_layer_with_projections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inference of few tokens by plain layers; not those with a hook or a forward of their own, nor gradients or many
    tokens."""
    calls: list[str] = []
    for name in ("inline_projected", "inline_from_packed"):
        original = getattr(inline_mechanism, name)

        def record(*args, name=name, original=original):
            calls.append(name)
            return original(*args)

        monkeypatch.setattr(inline_mechanism, name, record)
    monkeypatch.setenv(backend.VARIABLE, "triton")
    layer = Attention(32, 2, "inline").to(DEVICE, torch.bfloat16)
    x = torch.randn(2, 13, 32, device=DEVICE).bfloat16()
    layer(x, (3, 4), 1)
    with torch.no_grad():
        layer(x, (3, 4), 1)
        handle = layer.proj.register_forward_hook(lambda *_: None)
        layer(x, (3, 4), 1)
        handle.remove()
        with monkeypatch.context() as patch:
            patch.setattr(backend, "WHOLE_LAYER_TOKENS", 25)
            layer(x, (3, 4), 1)
        assert calls == ["inline_from_packed", "inline_projected", "inline_from_packed", "inline_from_packed"]
        calls.clear()
        for linear in (layer.proj, layer.qkv):  # as libraries do that load weights when they are needed
            linear.forward = lambda x, linear=linear: 2 * nn.Linear.forward(linear, x)
            layer(x, (3, 4), 1)
        assert calls == ["inline_from_packed"]


@pytest.mark.slow
def test_compile_with_projections(monkeypatch: pytest.MonkeyPatch) -> None:
    """One operator for known sizes; a graph for any batch has no guard on its size."""
    monkeypatch.setenv(backend.VARIABLE, "triton")
    layer = Attention(32, 2, "inline").to(DEVICE, torch.bfloat16)
    x = torch.randn(3, 13, 32, device=DEVICE).bfloat16()
    with torch.no_grad():
        want = layer(x, (3, 4), 1)
        for dynamic in (False, True):
            torch._dynamo.reset()
            compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=dynamic)
            assert_close("output", compiled(x, (3, 4), 1), want.double(), TOLERANCE[torch.bfloat16])
