"""Planned launches: directly or through Triton they give the same bits; a failure of the direct one falls back."""

import sys
import warnings
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from sightline.ops import inline_attention
from sightline.ops.common import launching
from sightline.ops.common.arguments import Tokens
from sightline.ops.common.launching import Layout, Program


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = launching._direct
    launching.forget()
    yield
    launching._direct = before
    launching.forget()


class FakeKernel:
    """A kernel that counts its launches; `fails` is what goes wrong with the direct ones."""

    arg_names = ("x", "size", "BLOCK")

    def __init__(self, fails: str) -> None:
        self.fails = fails
        self.plain = 0
        self.direct: list[tuple] = []

    def __getitem__(self, grid: tuple[int, ...]):  # type: ignore[no-untyped-def]
        def launch(*args: object, **constants: object) -> SimpleNamespace:
            self.plain += 1
            missing = {"function": 1} if self.fails == "names" else {"function": 1, "packed_metadata": 2}
            return SimpleNamespace(run=self._run, **missing)

        return launch

    def _run(self, *args: object) -> None:
        if self.fails == "launch":
            raise TypeError("function takes 12 arguments")
        self.direct.append(args)


def _program(kernel: FakeKernel) -> Program:
    program = Program(1)
    x = Layout(0, (2, 3, 4, 8), (96, 32, 8, 1), torch.float32)
    program.launch(kernel, (5,), (Tokens.of(x), 7), {"BLOCK": 16})
    return program


@pytest.fixture
def _compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "INTERPRETED", False)
    monkeypatch.setattr(launching, "_raw_stream", lambda index: 99)


def _run(program: Program, times: int) -> torch.Tensor:
    x = torch.zeros(2, 3, 4, 8)
    for _ in range(times):
        program([x], x.device)
    return x


@pytest.mark.usefixtures("_compiled")
def test_first_launch_is_plain_and_later_ones_are_direct() -> None:
    kernel = FakeKernel(fails="never")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = _run(_program(kernel), 3)
    assert kernel.plain == 1
    assert kernel.direct == [(5, 1, 1, 99, 1, 2, None, None, None, (x.data_ptr(), 96, 32, 8, 1), 7, 16)] * 2


@pytest.mark.usefixtures("_compiled")
@pytest.mark.parametrize("fails", ["names", "launch"])
def test_failure_of_the_direct_launch_falls_back_with_one_warning(fails: str) -> None:
    first, second = FakeKernel(fails), FakeKernel("never")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _run(_program(first), 4)
        _run(_program(second), 2)
    assert [warning.category for warning in caught] == [RuntimeWarning]
    assert (first.plain, first.direct) == (4, [])
    assert (second.plain, second.direct) == (2, [])


@pytest.mark.usefixtures("_compiled")
def test_kernels_are_not_compiled_ahead_if_triton_has_no_way_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton.runtime._async_compile", None)
    with pytest.warns(RuntimeWarning):
        launching.compile_all([_program(FakeKernel("never"))])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_both_ways_of_launching_give_the_same_bits(dtype: torch.dtype) -> None:
    q, k, v = torch.randn(2, 196, 3, 4, 32, device="cuda", dtype=dtype).unbind(2)
    residual = torch.randn(2, 128, 3, 3, device="cuda", dtype=dtype)
    outputs = []
    for direct in (True, False):
        launching._direct = direct
        for _ in range(3):  # the first launch of a program is a plain one
            leaves = [t.detach().requires_grad_() for t in (q, k, v, residual)]
            out = inline_attention(*leaves[:3], residual=leaves[3], grid=(14, 14), backend="triton")
            outputs.append([out, *torch.autograd.grad(out, leaves, torch.ones_like(out))])
    assert launching._direct is False
    for other in outputs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(outputs[0], other, strict=True))


@pytest.mark.gpu
def test_direct_launches_work_with_the_installed_triton() -> None:
    """Fails when Triton's private names have changed, which users only notice as a warning."""
    q = torch.randn(2, 50, 2, 16, device="cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        for _ in range(3):
            inline_attention(q, q, q, backend="triton")
    assert launching._direct


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_second_device() -> None:
    q = torch.randn(2, 196, 2, 32, device="cuda:1", requires_grad=True)
    assert torch.cuda.current_device() == 0
    for _ in range(2):
        out = inline_attention(q, q, q, backend="triton")
        (grad,) = torch.autograd.grad(out.square().sum(), q)
    want = inline_attention(q.double(), q.double(), q.double(), backend="torch")
    assert out.device == grad.device == q.device
    torch.testing.assert_close(out.double(), want, atol=1e-4, rtol=1e-4)
