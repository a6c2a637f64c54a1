"""Launches: recorded once per signature, then replayed; directly or through Triton they give the same bits."""

import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from sightline.ops import inline_attention
from sightline.ops.common import launching
from sightline.ops.common.launching import empty, launch, replay, views


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = launching._direct
    launching.forget()
    yield
    launching._direct = before
    launching.forget()


class FakeKernel:
    """A kernel that notes its launches; `fails` is what goes wrong with the direct ones."""

    arg_names = ("x", "stride", "out", "size", "BLOCK")

    def __init__(self, fails: str = "never") -> None:
        self.fails = fails
        self.plain: list[tuple] = []
        self.direct: list[tuple] = []

    def __getitem__(self, grid: tuple[int, ...]):  # type: ignore[no-untyped-def]
        def run(*args: object, **constants: object) -> SimpleNamespace:
            self.plain.append(args)
            missing = {"function": 1} if self.fails == "names" else {"function": 1, "packed_metadata": 2}
            return SimpleNamespace(run=self._run, **missing)

        return run

    def _run(self, *args: object) -> None:
        if self.fails == "launch":
            raise TypeError("function takes 12 arguments")
        self.direct.append(args)


def _operator(kernel: FakeKernel):  # type: ignore[no-untyped-def]
    """An implementation with an output, a view as another, and two buffers of its own."""

    def run(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
        out, other = empty((4, 2), torch.float32, x.device), empty((3,), torch.float32, x.device)
        scratch = [empty((5,), torch.float32, x.device) for _ in range(2)]
        part = x[1:]
        views(x, part)
        launch(kernel, (5,), (part, x.stride(0), out, size), {"BLOCK": 16})
        launch(kernel, (5, 2), (scratch[1][1:], 1, other, size), {"BLOCK": 16})
        return out.t(), other

    return run


@pytest.fixture
def _compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "INTERPRETED", False)
    monkeypatch.setattr(launching, "_raw_stream", lambda index: 99)
    monkeypatch.setattr(launching, "wrap_triton", lambda kernel: kernel)


@pytest.mark.usefixtures("_compiled")
def test_first_call_is_recorded_and_later_ones_are_replayed() -> None:
    kernel = FakeKernel()
    function = _operator(kernel)
    x = torch.zeros(4, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outputs = [replay(function, (x, 7)) for _ in range(3)]
    assert len(kernel.plain) == 2
    for number, (out, other) in enumerate(outputs[1:]):
        assert (out.shape, out.stride(), other.shape) == ((2, 4), (1, 2), (3,))
        first, second = kernel.direct[2 * number : 2 * number + 2]
        assert first == (5, 1, 1, 99, 1, 2, None, None, None, x.data_ptr() + 32, 8, out.data_ptr(), 7, 16)
        assert second[:3] == (5, 2, 1)
        assert second[11] == other.data_ptr()


@pytest.mark.usefixtures("_compiled")
def test_another_signature_is_recorded_again() -> None:
    kernel = FakeKernel()
    function = _operator(kernel)
    x = torch.zeros(4, 8)
    for args in ((x, 7), (x, 8), (x[:, :4], 7), (torch.zeros(5, 8), 7), (x, 7)):
        replay(function, args)
    assert len(kernel.plain) == 2 * 4
    assert len(kernel.direct) == 2


@pytest.mark.usefixtures("_compiled")
def test_two_threads_record_at_the_same_time() -> None:
    """Each waits in its first launch for the other: neither records what the other launches."""
    barrier = Barrier(2, timeout=120)

    class Waiting(FakeKernel):
        def __getitem__(self, grid: tuple[int, ...]):  # type: ignore[no-untyped-def]
            if not self.plain:
                barrier.wait()
            return super().__getitem__(grid)

    kernels = Waiting(), Waiting()
    functions = [_operator(kernel) for kernel in kernels]
    x = torch.zeros(4, 8)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda function: replay(function, (x, 7)), functions))
    for function, kernel in zip(functions, kernels, strict=True):
        replay(function, (x, 7))
        assert (len(kernel.plain), len(kernel.direct)) == (2, 2)


@pytest.mark.usefixtures("_compiled")
@pytest.mark.parametrize("fails", ["names", "launch"])
def test_failure_of_the_direct_launch_falls_back_with_one_warning(fails: str) -> None:
    first, second = FakeKernel(fails), FakeKernel()
    functions = _operator(first), _operator(second)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for function in functions:
            for _ in range(3):
                replay(function, (torch.zeros(4, 8), 7))
    assert [warning.category for warning in caught] == [RuntimeWarning]
    assert first.direct == second.direct == []
    assert len(second.plain) == 6


@pytest.mark.usefixtures("_compiled")
def test_kernels_are_not_compiled_ahead_if_triton_has_no_way_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton.runtime._async_compile", None)
    with pytest.warns(RuntimeWarning):
        launching.compile_all([])


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
def test_compiled_launches_are_part_of_the_graph() -> None:
    """Inductor calls the kernels itself, and gives the same bits."""
    from torch._inductor.utils import run_and_get_code

    leaves = [torch.randn(2, 196, 4, 32, device="cuda", requires_grad=True) for _ in range(3)]
    compiled = torch.compile(lambda q, k, v: inline_attention(q, k, v, backend="triton"), fullgraph=True)
    out, code = run_and_get_code(compiled, *leaves)
    assert "forward_short" in code[0]
    assert "torch.ops.sightline" not in code[0]
    want = inline_attention(*leaves, backend="triton")
    assert torch.equal(out, want)
    grads = [torch.autograd.grad(o, leaves, torch.ones_like(o)) for o in (out, want)]
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


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
