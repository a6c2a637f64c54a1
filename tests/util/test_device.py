"""Devices by name: those that exist, and one line about those that do not."""

import pytest
import torch

from sightline.util.device import autocast, choose_device
from sightline.util.errors import InputError


@pytest.mark.parametrize(
    ("cuda", "mps", "found"), [(True, False, "cuda"), (False, True, "mps"), (False, False, "cpu"), (True, True, "cuda")]
)
def test_auto(monkeypatch: pytest.MonkeyPatch, cuda: bool, mps: bool, found: str) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: cuda)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: mps)
    assert choose_device("auto") == torch.device(found)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("gpu", "did you mean 'cuda'?"),
        ("cpux", "did you mean 'cpu'?"),
        ("cuda:x", "auto, cpu, cuda, mps"),
        ("cuda", "cpu or auto"),
        ("cuda:1", "cpu or auto"),
        ("mps", "cpu or auto"),
        ("cpu:1", "cpu:0"),
    ],
)
def test_a_device_that_does_not_exist(monkeypatch: pytest.MonkeyPatch, name: str, remedy: str) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    with pytest.raises(InputError, match="--device: ") as error:
        choose_device(name, "--device")
    assert name in str(error.value)
    assert remedy in str(error.value)


def test_a_gpu_beyond_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert choose_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(InputError, match=r"cuda:2 .*cuda:1"):
        choose_device("cuda:2")


def test_autocast() -> None:
    a = torch.ones(2, 2)
    for precision, dtype in (("no", torch.float32), ("bf16", torch.bfloat16)):
        with autocast(a.device, precision):
            assert (a @ a).dtype == dtype
