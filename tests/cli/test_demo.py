"""`sightline demo`."""

import re
import sys
from pathlib import Path

import pytest
import torch

from sightline.cli.main import main
from sightline.models.zoo import create

from .checkpoints import public, save, small

CAPTURE = pytest.CaptureFixture[str]


def test_random_weights_are_said_to_be_random(capsys: CAPTURE) -> None:
    shown = []
    for _ in range(2):
        torch.manual_seed(5)  # what came before does not matter
        assert main(["demo"]) == 0
        shown.append(re.sub(r"\d+ ms", "ms", capsys.readouterr().out))
    assert shown[0] == shown[1]
    assert "RANDOM" in shown[0]
    for text in ("inline_deit_tiny", "china.jpg", "flower.jpg"):
        assert text in shown[0]
    assert len(re.findall(r"^ +[1-5] +\d+ +0\.\d{4}  \w", shown[0], re.MULTILINE)) == 10
    assert shown[0].splitlines()[-1].startswith("Next: `sightline demo --checkpoint FILE`")


def test_checkpoint(tmp_path: Path, capsys: CAPTURE) -> None:
    source = save({"model": public(small("deit"))}, tmp_path / "public.pth")
    assert main(["demo", "--checkpoint", source]) == 0
    shown = capsys.readouterr().out
    assert "RANDOM" not in shown
    assert "inline_deit_tiny (embed_dims=16" in shown
    assert shown.splitlines()[-1].startswith("Next: `sightline convert")


def test_checkpoint_into_a_named_model(tmp_path: Path, capsys: CAPTURE) -> None:
    source = save(create("inline_deit_tiny").state_dict(), tmp_path / "native.pth")
    assert main(["demo", "--checkpoint", source, "--model", "inline_deit_tiny"]) == 0
    assert main(["demo", "--checkpoint", source, "--model", "inline_deit_small"]) == 2
    assert "do not fit inline_deit_small" in capsys.readouterr().err


def test_bad_input(tmp_path: Path, capsys: CAPTURE) -> None:
    source = save(public(small("deit", num_classes=0)), tmp_path / "headless.pth")
    for arguments, message in (
        (["--model", "inline_deit_tny"], "did you mean 'inline_deit_tiny'?"),
        (["--checkpoint", str(tmp_path / "none.pth")], "no such file"),
        (["--checkpoint", source], "no classifier"),
    ):
        assert main(["demo", *arguments]) == 2
        err = capsys.readouterr().err
        assert message in err
        assert err.count("\n") == 1


def test_without_scikit_learn(monkeypatch: pytest.MonkeyPatch, capsys: CAPTURE) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    assert main(["demo"]) == 2
    assert "pip install scikit-learn" in capsys.readouterr().err
