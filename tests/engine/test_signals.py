"""What a signal does to a run in this process; those of `test_survival.py` go to other processes."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from sightline.engine.signals import STOPPING, Stopped, StopSignals
from sightline.engine.step import StepFlags, Stepper
from sightline.engine.trainer import Trainer
from sightline.tasks.classification.task import Classification
from tests.engine.tiny import configure, make_images, metrics, train, weights


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_images(tmp_path_factory.mktemp("images"))


@pytest.mark.parametrize("name", STOPPING)
def test_signals_are_noted(name: str) -> None:
    with StopSignals() as signals:
        os.kill(os.getpid(), getattr(signal, name))
        assert signals.received == name


@pytest.mark.slow
def test_a_signal_while_evaluating_saves_once(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, saved = tmp_path / "run", []
    save, evaluation = Trainer.save, Classification.evaluation

    def noted(self: Trainer) -> None:
        saved.append((self.progress.epoch, self.progress.batch))
        save(self)

    def interrupted(self: Classification) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return evaluation(self)

    monkeypatch.setattr(Trainer, "save", noted)
    monkeypatch.setattr(Classification, "evaluation", interrupted)
    with pytest.raises(Stopped, match="stopped by SIGTERM and saved at step 4"):
        train(configure(images, out))
    assert saved == [(0, 4)]  # only the evaluation of the epoch is left
    monkeypatch.undo()
    train(configure(images, out))
    train(configure(images, tmp_path / "whole"))
    assert weights(out) == weights(tmp_path / "whole")
    assert metrics(out) == metrics(tmp_path / "whole")


class Lagging(Stepper):
    """Gives the flags of the update before, as on a GPU."""

    late: StepFlags | None = None

    def gradients(self, *args: Any) -> StepFlags | None:
        now, before = super().gradients(*args), self.flush()
        self.late = now
        return before

    def flush(self) -> StepFlags | None:
        before, self.late = self.late, None
        return before


def test_a_signal_is_heard_if_every_update_is_saved(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where saving waits for the flags of the last update, one of which says that the run was asked to stop."""
    monkeypatch.setattr("sightline.engine.trainer.Stepper", Lagging)
    loss = Classification.loss

    def interrupted(self: Classification, *args: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return loss(self, *args)

    monkeypatch.setattr(Classification, "loss", interrupted)
    with pytest.raises(Stopped, match=r"stopped by SIGTERM and saved at step [23] "):
        train(configure(images, tmp_path / "run", run__save_steps=1))
