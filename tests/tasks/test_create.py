"""Models of a run that start from published weights."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from sightline.tasks.classification.config import Data, Model
from sightline.tasks.classification.model import build
from sightline.tasks.create import create
from sightline.tasks.dense.backbone import Backbone
from sightline.tasks.dense.config import DenseModel
from sightline.util.errors import FileError, InputError, RunError

from ..models.test_pretrained import NAME, Site, assert_same_state, checkpoint, site
from ..models.tiny import tiny

__all__ = ["site"]


def test_a_run_says_what_is_not_loaded(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.publish("deit")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # lines of the run, not warnings of Python
        model = create(NAME, {"num_classes": 3, "attention": "softmax"}, pretrained=True)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    for line, words in zip(lines, ("licence", "classifier", "attention mechanism"), strict=True):
        assert line.startswith(f"{NAME}: ")
        assert words in line
    assert_same_state(model, tiny("deit", num_classes=1000), "mlp")


@pytest.mark.parametrize(("section", "key"), [("model", "model.pretrained"), ("distill", "distill.teacher")])
def test_no_weights_are_published(section: str, key: str) -> None:
    with pytest.raises(InputError, match=rf"{key}: inline_swin_base_384"):
        create("inline_swin_base_384", {}, pretrained=True, section=section)


@pytest.mark.parametrize(
    ("name", "args"), [("inline_conv_small", {"blur": 3}), ("inline_deit_tiny", {"qkv_bias": "yes"})]
)
def test_arguments_that_no_file_could_record_are_rejected(name: str, args: dict[str, Any]) -> None:
    """A model is built with them, but its weights could not be opened after training."""
    with pytest.raises(InputError, match=rf"^model\.args: {next(iter(args))}: .*cannot record it$"):
        create(name, args)


def test_weights_that_cannot_be_downloaded(site: Site) -> None:
    with pytest.raises(FileError, match="404") as caught:
        create(NAME, {}, pretrained=True)
    assert f"{site.server.url}/{NAME}" in str(caught.value)


def test_a_checkpoint_takes_precedence(site: Site, tmp_path: Path) -> None:
    path = tmp_path / "own.pth"
    path.write_bytes(checkpoint("deit"))
    config = Model(name=NAME, pretrained=True, checkpoint=str(path))
    model, _ = build(config, Data(size=64), ("a", "b"))
    assert_same_state(model, tiny("deit", num_classes=1000), "blocks")
    assert site.server.requests == []


def test_backbones(site: Site) -> None:
    name = site.publish("pvt")
    backbone = Backbone(DenseModel(name=name, pretrained=True))
    assert_same_state(backbone.body.model, tiny("pvt", num_classes=1000), "stages")
    assert [found.shape[1] for found in backbone(torch.randn(1, 3, 64, 64))] == [8, 16, 24, 32]


def test_a_signal_during_a_download_is_no_error_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise RunError("stopped by SIGTERM")

    monkeypatch.setattr("timm.create_model", stopped)
    with pytest.raises(RunError, match=r"^stopped by SIGTERM$"):
        create("vit_tiny_patch16_224", {}, pretrained=True)


def test_windows_of_timm_are_for_any_size() -> None:
    """Its Swin is made for images of one size, and its maps have their channels last."""
    backbone = Backbone(DenseModel(name="swin_tiny_patch4_window7_224", args={"depths": [1, 1, 1, 1]}))
    assert [tuple(x.shape) for x in backbone(torch.zeros(1, 3, 64, 96))] == [
        (1, channels, 64 // stride, 96 // stride)
        for channels, stride in zip((96, 192, 384, 768), (4, 8, 16, 32), strict=True)
    ]


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("maxvit_rmlp_pico_rw_256", {}, r"model\.name: maxvit.* does not take images of any size \(.*window"),
        ("densenet121", {"drop_path": 0.1}, r"model\.drop_path: densenet121 has no stochastic depth; give 0"),
        ("resnet18", {"args": {"attention": "softmax"}}, r"model\.args: resnet18 has no argument 'attention'"),
        ("resnet18", {"args": {"foo": 1}}, r"model\.args: .*foo"),
    ],
)
def test_backbones_of_timm_that_cannot_be_used(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Backbone(DenseModel(name=name, **changes))
