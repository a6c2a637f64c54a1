"""What torch finds out about a kernel is kept, per kernel and kinds of arguments; compiled code launches directly."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._higher_order_ops.triton_kernel_wrap as wrap

from sightline.ops.common import tracing
from sightline.ops.common.tracing import remembering


def _kernel(module: str = "sightline.ops.linear.forward_kernels") -> SimpleNamespace:
    function = SimpleNamespace(__module__=module)
    return SimpleNamespace(fn=function, arg_names=["x", "y", "n", "SIZE"], constexprs=[3])


class _Key(SimpleNamespace):
    __hash__ = object.__hash__


@pytest.fixture
def calls() -> list[dict[str, Any]]:
    return []


def _arguments(**changes: Any) -> dict[str, Any]:
    return {"x": torch.zeros(2), "y": None, "n": 4, "SIZE": 16, **changes}


@pytest.mark.parametrize(
    ("changes", "analyses"),
    [
        ({}, 1),
        ({"x": torch.ones(3)}, 1),
        ({"n": 5}, 1),
        ({"x": torch.zeros(2, dtype=torch.float16)}, 2),
        ({"y": torch.zeros(2)}, 2),
        ({"SIZE": 32}, 2),
        ({"SIZE": True}, 2),
        ({"n": 4.0}, 2),
    ],
)
def test_kinds_of_arguments(changes: dict[str, Any], analyses: int, calls: list[dict[str, Any]]) -> None:
    kernel = _Key(**vars(_kernel()))
    run = remembering(lambda kernel, kwargs, tma: calls.append(kwargs) or [["x"]])
    first, second = run(kernel, _arguments(), {}), run(kernel, _arguments(**changes), {})
    assert len(calls) == analyses
    assert first == second == [["x"]]
    first[0].append("y")
    assert run(kernel, _arguments(), {}) == [["x"]]  # each caller has its own


def test_kernels_in_a_wrapper_with_warps(calls: list[dict[str, Any]]) -> None:
    inner = _Key(**vars(_kernel()))
    run = remembering(lambda kernel, kwargs, tma: calls.append(kwargs) or [])
    for _ in range(2):
        run(SimpleNamespace(fn=inner, configs=[object()]), _arguments(), {})
    assert len(calls) == 1


def test_other_kernels_and_descriptors_are_left_alone(calls: list[dict[str, Any]]) -> None:
    run = remembering(lambda kernel, kwargs, tma: calls.append(kwargs) or [])
    for kernel, tma in ((_Key(**vars(_kernel("other.kernels"))), {}), (_Key(**vars(_kernel())), {"x": 1})):
        run(kernel, _arguments(), tma)
        run(kernel, _arguments(), tma)
    assert len(calls) == 4


def test_torch_has_one_of_the_names() -> None:
    found = [getattr(wrap, name) for name in tracing.NAMES if hasattr(wrap, name)]
    assert found
    assert all(hasattr(function, "forget") for function in found)
    tracing.remember_accesses()  # a second time changes nothing
    assert [getattr(wrap, name) for name in tracing.NAMES if hasattr(wrap, name)] == found


VARIABLE = f"TORCHINDUCTOR_{tracing.DIRECT.upper()}"


def test_compiled_code_launches_directly_here_and_in_processes_that_compile() -> None:
    assert getattr(tracing.inductor, tracing.DIRECT)
    assert os.environ[VARIABLE] == "1"
    assert VARIABLE in Path(str(tracing.inductor.__file__)).read_text()


@pytest.mark.parametrize(("options", "left"), [({tracing.DIRECT: False}, "0"), ({}, None)])
def test_what_is_set_or_unknown_is_left_alone(options: dict, left: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE) if left is None else monkeypatch.setenv(VARIABLE, left)
    monkeypatch.setattr(tracing, "inductor", SimpleNamespace(**options))
    tracing.launch_directly()
    assert os.environ.get(VARIABLE) == left
    assert vars(tracing.inductor).keys() == options.keys()
