"""Replayed launches of every operator get the addresses and numbers that a recording of the same call would get."""

from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from sightline.ops import inline_attention, linear_attention, soft_attention
from sightline.ops.common import kernels as common_kernels
from sightline.ops.common import launching
from sightline.ops.headwise_conv import headwise_conv
from sightline.ops.headwise_conv import kernels as conv_kernels
from sightline.ops.headwise_conv import launch as conv_launch
from sightline.ops.inline.layer import ResidualLayers, inline_from_packed, inline_from_parts
from sightline.ops.linear import backward_kernels, forward_kernels, near_kernels, weights_kernels
from sightline.ops.linear import launch as linear_launch
from sightline.ops.soft import backward_kernels as soft_backward
from sightline.ops.soft import forward_kernels as soft_forward
from sightline.ops.soft import launch as soft_launch
from sightline.ops.soft import matrix_kernels

MODULES: tuple[ModuleType, ...] = (
    backward_kernels, common_kernels, conv_kernels, forward_kernels, matrix_kernels, near_kernels, soft_backward,
    soft_forward, weights_kernels,
)  # fmt: skip


class Call(NamedTuple):
    kernel: str
    grid: tuple[int, ...]
    values: tuple


class Note:
    """Stands for a kernel: notes its launches, with addresses for tensors, whether plain or direct."""

    def __init__(self, name: str, arg_names: list[str], calls: list[Call], plain: list[Call]) -> None:
        self.name, self.arg_names, self.calls, self.plain = name, arg_names, calls, plain

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., SimpleNamespace]:
        grid = (*grid, 1, 1)[:3]

        def run(*args: Any, **constants: Any) -> SimpleNamespace:
            rest = [constants[name] for name in self.arg_names[len(args) :]]
            values = tuple(_address(value) for value in (*args, *rest))
            self.plain.append(Call(self.name, grid, values))
            return SimpleNamespace(run=self._run, function=1, packed_metadata=2)

        return run

    def _run(self, *args: Any) -> None:
        self.calls.append(Call(self.name, args[:3], args[9:]))


class Address(int):
    """Where a tensor lies, as opposed to a number."""


def _address(value: object) -> object:
    if isinstance(value, Tensor):
        return Address(value.data_ptr() if value.numel() else 0)
    return value


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[list[Call], list[Call]]]:
    """Direct and plain launches of every kernel."""
    direct: list[Call] = []
    plain: list[Call] = []
    for module in MODULES:
        for name, kernel in vars(module).items():
            if hasattr(kernel, "arg_names") and "tl.program_id" in getattr(kernel, "src", "tl.program_id"):
                monkeypatch.setattr(module, name, Note(name, list(kernel.arg_names), direct, plain))
    for module in (linear_launch, conv_launch):
        monkeypatch.setattr(module, "add_parts", common_kernels.add_parts)
    monkeypatch.setattr(launching, "INTERPRETED", False)
    monkeypatch.setattr(launching, "_raw_stream", lambda index: 0)
    for module in (linear_launch, soft_launch):
        monkeypatch.setattr(module, "_compile_ahead", lambda *args: None)
    launching.forget()
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):  # where the backend allows Triton
        yield direct, plain
    launching.forget()


def _tokens(count: int = 12, **options: Any) -> Tensor:
    return torch.randn(2, count, 2, 16, **options)


def _layer(tokens: int) -> Callable[..., Tensor]:
    shapes = ((32, 16, 1), (32,), (288, 16, 1), (288,))

    def run(qkv: Tensor, x: Tensor) -> Tensor:
        layers = ResidualLayers(*(torch.ones(shape, requires_grad=True) for shape in shapes))
        return inline_from_packed(qkv, x, layers, 2, (tokens, 1), 0, "identity")

    return run


def _readers(window: int) -> Callable[..., Tensor]:
    shapes = ((32, 16, 1), (32,), (288, 16, 1), (288,))

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        layers = ResidualLayers(*(torch.ones(shape) for shape in shapes))
        far = [torch.ones(2, n) if window else None for n in (16, 1, 1)]
        grid = (q.shape[1] // 4, 4)
        with torch.no_grad():
            readers = torch.ones(q.shape[0], 4, 2, 16)
            return inline_from_parts(q, k, v, q.flatten(2), layers, grid, 0, "identity", readers, 4, far, window)

    return run


def _soft(landmarks: int) -> Callable[..., Tensor]:
    def run(q: Tensor, v: Tensor) -> Tensor:
        marks = torch.randn(2, landmarks, 2, 16, requires_grad=True)
        return soft_attention(q, v, marks, normalized=True, iterations=2, backend="triton")

    return run


OPERATORS: dict[str, tuple[Callable[..., Tensor], int, tuple[int, ...]]] = {  # function, inputs, their shape
    "inline": (lambda q, k, v: inline_attention(q, k, v, backend="triton"), 3, (2, 12, 2, 16)),
    "long inline": (lambda q, k, v: inline_attention(q, k, v, backend="triton"), 3, (1, 1100, 2, 16)),
    "residual": (
        lambda q, k, v: inline_attention(q, k, v, residual=torch.ones(2, 32, 3, 3), grid=(3, 4), backend="triton"),
        3,
        (2, 12, 2, 16),
    ),
    "linear": (lambda q, k, v: linear_attention(q, k, v, backend="triton"), 3, (2, 12, 2, 16)),
    "layer": (_layer(12), 2, (2, 12, 32)),
    "long layer": (_layer(1100), 2, (1, 1100, 32)),
    "readers": (_readers(0), 3, (2, 12, 2, 16)),
    "long readers": (_readers(0), 3, (1, 1100, 2, 16)),
    "near": (_readers(3), 3, (2, 12, 2, 16)),
    "soft": (_soft(9), 2, (2, 12, 2, 16)),
    "soft in blocks": (_soft(70), 2, (2, 12, 2, 16)),
    "conv": (lambda x, add: headwise_conv(x, torch.ones(2, 1, 3, 3, requires_grad=True), (3, 4), add=add,
                                          backend="triton"), 2, (2, 12, 2, 16)),
}  # fmt: skip


def _run(function: Callable[..., Tensor], inputs: list[Tensor]) -> None:
    out = function(*inputs)
    if out.requires_grad:
        out.backward(torch.ones_like(out))


def _inputs(name: str, shared: bool) -> list[Tensor]:
    """Inputs of an operator, all the same tensor or each its own."""
    _, count, shape = OPERATORS[name]
    if "layer" in name:  # the projection and its tokens
        packed = torch.randn(*shape[:2], 4 * shape[2])
        qkv, x = packed.split([3 * shape[2], shape[2]], 2)
        made = [qkv, x] if shared else [torch.randn_like(packed)[..., :96], torch.randn_like(packed)[..., 96:]]
        return [t.detach().requires_grad_() for t in made]
    first = torch.randn(shape, requires_grad=True)
    return [first if shared else torch.randn(shape, requires_grad=True) for _ in range(count)]


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("shared_first", [True, False])
def test_replay_is_the_recording_of_the_same_call(name: str, shared_first: bool, noted: Any) -> None:
    direct, plain = noted
    function = OPERATORS[name][0]
    _run(function, _inputs(name, shared_first))
    inputs = _inputs(name, not shared_first)
    plain.clear()
    direct.clear()
    _run(function, inputs)
    replayed, recorded_during = list(direct), list(plain)
    assert recorded_during == []
    assert replayed
    launching.forget()
    _run(function, inputs)
    assert any(_inside(v, inputs) for call in plain for v in call.values if isinstance(v, Address))
    for again, want in zip(replayed, plain, strict=True):
        assert (again.kernel, again.grid, len(again.values)) == (want.kernel, want.grid, len(want.values))
        for value, wanted in zip(again.values, want.values, strict=True):
            if isinstance(wanted, Address) and wanted and not _inside(wanted, inputs):
                assert value
                assert not _inside(value, inputs)  # buffers lie elsewhere in each call
            else:
                assert value == wanted


def _inside(address: int, inputs: list[Tensor]) -> bool:
    storages = [t.untyped_storage() for t in inputs]
    return any(s.data_ptr() <= address < s.data_ptr() + s.nbytes() for s in storages)
