"""`sightline info`."""

import json

import pytest
import torch
from torch import Tensor

from sightline import backend
from sightline.bench.info import describe_model
from sightline.cli.main import main
from sightline.models.base import VisionModel
from sightline.models.zoo import create
from sightline.util.errors import InputError


def facts(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    assert main(["info", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_model_of_our_own(capsys: pytest.CaptureFixture[str]) -> None:
    found = facts(capsys, "inline_conv_small")
    assert set(found["published"].values()) == {224, None}
    assert [(stage["depth"], stage["attention"]) for stage in found["stages"]] == [
        (3, "convolutions"), (4, "convolutions"), (8, "convolutions, inline"), (3, "convolutions, inline"),
    ]  # fmt: skip
    assert main(["info", "inline_conv_small"]) == 0
    assert "Published figures" not in capsys.readouterr().out


def test_published_size(capsys: pytest.CaptureFixture[str]) -> None:
    found = facts(capsys, "inline_deit_tiny")
    assert list(found) == [
        "name", "family", "paper", "img_size", "num_classes", "attention", "params", "macs", "activations",
        "published", "stages", "input", "notes",
    ]  # fmt: skip
    assert found["params"] == sum(p.numel() for p in create("inline_deit_tiny", device="meta").parameters())
    assert round(found["params"] / 1e6, 2) == 6.48
    assert found["published"] == {"img_size": 224, "params_m": 6.48, "flops_g": 1.1, "top1": 74.5}
    assert abs(found["macs"] / 1e9 - 1.1) < 0.1
    assert found["activations"] == 4_575_208
    assert found["stages"] == [{"grid": [14, 14], "dim": 192, "heads": 6, "depth": 12, "attention": "inline"}]
    assert found["input"]["input_size"] == [3, 224, 224]
    assert found["input"]["interpolation"] == "bicubic"
    assert found["input"]["crop_pct"] == 0.9


@pytest.mark.slow
def test_other_size_attention_and_classes(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--img-size", "384x640", "--attention", "softmax", "--num-classes", "10")
    found, usual = facts(capsys, "inline_cswin_tiny", *arguments), facts(capsys, "inline_cswin_tiny")
    assert found["img_size"] == [384, 640]
    assert found["num_classes"] == 10
    assert [stage["grid"] for stage in found["stages"]] == [[96, 160], [48, 80], [24, 40], [12, 20]]
    assert {stage["attention"] for stage in found["stages"]} == {"softmax"}
    assert found["params"] < usual["params"]
    assert found["macs"] > 4 * usual["macs"]
    assert found["published"] == usual["published"]


def test_grid_of_a_size_that_does_not_divide_is_the_one_that_runs(capsys: pytest.CaptureFixture[str]) -> None:
    stages = facts(capsys, "inline_swin_tiny", "--img-size", "225x224")["stages"]
    assert [stage["grid"] for stage in stages] == [[57, 56], [29, 28], [15, 14], [8, 7]]
    assert [stage["heads"] for stage in stages] == [3, 6, 12, 24]


def test_why_this_gpu_runs_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = describe_model("inline_deit_tiny").notes
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(backend, "device_limits", lambda index: (7, 5, 65_536))
    monkeypatch.setattr(backend, "_widest", {})
    notes = [note for note in describe_model("inline_deit_tiny").notes if note not in usual]
    assert [dtype in note for dtype, note in zip(("bfloat16", "float32"), notes, strict=True)] == [True, True]
    assert all("inline" in note and "7.5" in note for note in notes)


@pytest.mark.slow
def test_text_has_everything_and_the_note_on_newton_steps(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "soft_tiny"]) == 0
    shown = capsys.readouterr().out
    for text in ("13,069,056", "13.07 M", "1.9 G", "79.3 %", "56x56", "3136", "softmax", "bicubic", "(2021)"):
        assert text in shown
    assert "Newton" in shown
    assert main(["info", "inline_deit_tiny"]) == 0
    assert "Newton" not in capsys.readouterr().out


@pytest.mark.slow
def test_takes_no_memory_for_weights(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    devices = []
    forward = VisionModel.forward

    def watch(self: VisionModel, x: Tensor) -> Tensor:
        devices.extend([x.device.type, *(p.device.type for p in self.parameters())])
        return forward(self, x)

    monkeypatch.setattr(VisionModel, "forward", watch)
    assert facts(capsys, "inline_swin_base_384", "--img-size", "4096")["macs"] > 1e12
    assert set(devices) == {"meta"}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["inline_swin_tny"], ["'inline_swin_tny'", "'inline_swin_tiny'"]),
        (["resnet50"], ["'resnet50'"]),
        (["inline_deit_tiny", "--img-size", "0"], ["--img-size", "'0'"]),
        (["inline_deit_tiny", "--img-size", "3x"], ["--img-size", "'3x'"]),
        (["inline_deit_tiny", "--img-size", "99999999"], ["--img-size", "99999999", "65536"]),
        (["inline_deit_tiny", "--num-classes", "-3"], ["--num-classes", "-3"]),
        (["inline_deit_tiny", "--attention", "inlne"], ["'inlne'", "'inline'"]),
        (["inline_swin_tiny", "--attention", "inline,inline"], ["attention", "'inline,inline'"]),
    ],
)
def test_bad_input(arguments: list[str], named: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert all(text in err for text in named)
    assert err.count("\n") == 1


@pytest.mark.slow
def test_why_there_are_more_parameters_at_another_size(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "soft_norm_tiny", "--img-size", "512x768"]) == 0
    shown = capsys.readouterr().out
    assert "2,658,560 parameters more than at 224x224" in shown
    assert "position tables" in shown
    assert main(["info", "inline_cswin_tiny", "--img-size", "512x768"]) == 0
    assert "position tables" not in capsys.readouterr().out  # it has none


def test_as_a_function() -> None:
    info = describe_model("inline_deit_tiny", img_size=(64, 96), num_classes=0)
    assert (info.img_size, info.num_classes, info.stages[0].grid) == ((64, 96), 0, (4, 6))
    assert info.published["top1"] == 74.5
    with pytest.raises(InputError, match="'inline_deit_tny'"):
        describe_model("inline_deit_tny")
