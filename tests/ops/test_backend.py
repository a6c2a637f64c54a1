"""Which implementation runs."""

import pytest
import torch

from sightline import backend
from sightline.backend import choose

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(backend.VARIABLE, raising=False)
    monkeypatch.setattr(backend, "TRITON_OPERATORS", frozenset({"kernel"}))


@pytest.mark.parametrize(
    ("operator", "device", "expected"),
    [("kernel", CPU, "torch"), ("kernel", CUDA, "triton"), ("plain", CPU, "torch"), ("plain", CUDA, "torch")],
)
@pytest.mark.parametrize("wanted", [None, "auto"])
def test_auto_takes_the_kernel_where_it_can_run(
    operator: str, device: torch.device, expected: str, wanted: str | None
) -> None:
    assert choose(operator, device, wanted) == expected


def test_variable_name() -> None:
    assert backend.VARIABLE == "SIGHTLINE_BACKEND"


@pytest.mark.parametrize(("value", "expected"), [("torch", "torch"), ("triton", "triton"), ("auto", "triton")])
def test_variable_replaces_auto(value: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIGHTLINE_BACKEND", value)
    assert choose("kernel", CUDA) == expected


@pytest.mark.parametrize(("argument", "expected"), [("torch", "torch"), ("triton", "triton")])
def test_argument_wins_over_the_variable(argument: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIGHTLINE_BACKEND", "torch" if argument == "triton" else "triton")
    assert choose("kernel", CUDA, argument) == expected


@pytest.mark.parametrize("value", ["nonsense", "", "Triton"])
def test_unknown_argument(value: str) -> None:
    with pytest.raises(ValueError, match=rf"^kernel: backend='{value}'.*auto, triton, torch"):
        choose("kernel", CPU, value)


@pytest.mark.parametrize("value", ["nonsense", ""])
def test_unknown_variable(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIGHTLINE_BACKEND", value)
    with pytest.raises(ValueError, match=rf"^kernel: SIGHTLINE_BACKEND='{value}'"):
        choose("kernel", CPU)


def test_triton_without_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"^plain: backend='triton'"):
        choose("plain", CUDA, "triton")
    monkeypatch.setenv("SIGHTLINE_BACKEND", "triton")  # a model may hold softmax blocks next to InLine ones
    assert choose("plain", CUDA) == "torch"


def test_triton_on_the_cpu_needs_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(ValueError, match=r"^kernel: backend='triton'.* cpu"):
        choose("kernel", CPU, "triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert choose("kernel", CPU, "triton") == "triton"


def test_triton_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "TRITON_INSTALLED", False)
    assert choose("kernel", CUDA) == "torch"
    with pytest.raises(ValueError, match=r"^kernel: backend='triton'.*not installed.*'auto'"):
        choose("kernel", CUDA, "triton")


def test_auto_falls_back_on_the_reference() -> None:
    assert choose("kernel", CUDA, None, "head dim is 256") == "torch"
    with pytest.raises(ValueError, match=r"^kernel: backend='triton'.*head dim is 256.*'auto'"):
        choose("kernel", CUDA, "triton", "head dim is 256")
