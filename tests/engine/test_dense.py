"""A dense run that is stopped goes on to the same weights, bit by bit; broken images are skipped on request."""

import json
from pathlib import Path
from typing import Any

import pytest

from sightline.engine.errors import RunError
from sightline.engine.train import train
from tests.engine.tiny import metrics, weights
from tests.tasks.detection import tiny as detection
from tests.tasks.segmentation import tiny as segmentation


@pytest.mark.parametrize("tiny", [segmentation, detection], ids=["segmentation", "detection"])
def test_a_stopped_run_ends_with_the_same_weights(tmp_path: Path, tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tiny.make_data(tmp_path / "data", 4)
    options = {"schedule": {"epochs": 2}, "ema": {"decay": 0.9}, "model": {"drop_path": 0.2}}
    whole = train(tiny.config(data, tmp_path / "whole", **options))
    saving = {**options, "run": {"save_steps": 1}}
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        with pytest.raises(RunError):
            train(tiny.config(data, tmp_path / "stopped", **saving))
    again = train(tiny.config(data, tmp_path / "stopped", **saving))
    assert whole is not None
    assert again is not None
    assert weights(again) == weights(whole)
    assert metrics(again) == metrics(whole)


def stop_after(patch: pytest.MonkeyPatch, steps: int) -> None:
    """Let a run fail inside its update number `steps`."""
    from sightline.engine.step import Stepper

    gradients, seen = Stepper.gradients, []

    def failing(self: Any, *arguments: Any) -> Any:
        seen.append(None)
        if len(seen) == steps:
            raise RunError("the machine is gone")
        return gradients(self, *arguments)

    patch.setattr(Stepper, "gradients", failing)


def test_broken_masks_are_skipped_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = segmentation.make_data(tmp_path / "data", 3)
    (data / "masks/train/1.png").write_bytes(b"words")
    with pytest.raises(ValueError, match=r"1\.png: cannot be read as a mask.*on_error skip"):
        train(segmentation.config(data, tmp_path / "stop", run={"resume": "never"}))
    folder = train(segmentation.config(data, tmp_path / "skip", data={"on_error": "skip"}))
    assert folder is not None
    assert "skipped: " in capsys.readouterr().out
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["skipped_images"] == 1
