"""What a run prints about its course: what it takes, how fast it goes, when it ends."""

import re
from itertools import count
from pathlib import Path

import pytest

from sightline.engine import progress
from sightline.engine.checkpoint import LAST, NEW, PREVIOUS, Checkpoints
from sightline.engine.progress import ProgressPrinter
from sightline.engine.run_folder import METRICS, RunFolder
from sightline.tasks.card import ModelCard
from sightline.util.names import format_rate, rate_cell


@pytest.mark.parametrize(
    ("rate", "shown", "cell"),
    [
        (12345.6, "12,346 images/s", "12,346"),
        (9.96, "10.0 images/s", "10"),
        (1.25, "1.2 images/s", "1.2"),
        (0.4, "2.5 s per image", "0.4"),
        (0.0003, "3,333.3 s per image", "0.0003"),
        (0.0, "- images/s", "0"),
    ],
)
def test_rates(rate: float, shown: str, cell: str) -> None:
    assert (format_rate(rate, "images"), rate_cell(rate)) == (shown, cell)


def lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, seconds: float) -> list[str]:
    """What is printed about six updates, each taking `seconds`, of a run limited to eight."""
    clock = (seconds * i for i in count())
    printer = ProgressPrinter(True, epochs=3, steps=4, updates=8, batch=2, every=3)
    printer.plan()
    monkeypatch.setattr(progress.time, "perf_counter", lambda: now)
    for epoch, batch in ((0, 1), (0, 2), (0, 3), (0, 4), (1, 1), (1, 2)):
        if batch == 1:
            now = next(clock)
            printer.begin(epoch, 0)
        now = next(clock)
        printer.update(epoch, batch, None, 0.0)
    printer.stop()
    return capsys.readouterr().out.splitlines()


def test_the_first_line_is_the_plan_and_slow_runs_are_estimated(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, *slow = lines(capsys, monkeypatch, 6.0)
    assert re.findall(r"\d+", plan) == ["8", "12", "2", "4", "3"]
    assert [line.split(",")[0] for line in slow] == ["about 0:42 for 7 more updates", "epoch 1/3"]
    assert all("3.0 s per image" in line for line in slow)
    assert "0:30 left" in slow[1]
    assert len(lines(capsys, monkeypatch, 0.1)) == 2  # without an estimate


def test_metrics_belong_to_epochs_and_steps(tmp_path: Path) -> None:
    """Lines that are damaged, doubled or later than what the run resumes from do not move the others."""
    folder = RunFolder(tmp_path)
    steps = {1: 4, 2: 8, 3: 12, 4: 16}
    text = [f'{{"epoch": {epoch}, "step": {step}, "top1": 1.0}}' for epoch, step in steps.items()]
    (tmp_path / METRICS).write_text("\n".join(['{"epoch": 1, "st', *text[1:], text[2], text[3][:9]]))
    folder.rewind(3, 12)
    assert (tmp_path / METRICS).read_text().splitlines() == text[1:3]
    folder.rewind(3, 11)
    assert (tmp_path / METRICS).read_text().splitlines() == text[1:2]
    folder.close()


def test_a_complete_checkpoint_without_its_name_gets_it(tmp_path: Path) -> None:
    """A kill between the last byte of a checkpoint and its renaming, after the last update of a run."""
    checkpoints = Checkpoints(tmp_path, print)
    for epoch in (1, 2):
        checkpoints.save({}, ModelCard("x"), {}, {"step": 9, "epoch": epoch})
    (tmp_path / LAST).rename(tmp_path / NEW)
    found = checkpoints.latest()
    assert found is not None
    assert found.record["epoch"] == 2  # of two after the same step
    checkpoints.settle(found)
    assert sorted(path.name for path in tmp_path.iterdir()) == [LAST, PREVIOUS]
    again = checkpoints.latest()
    assert again is not None
    assert (again.path.name, again.record) == (LAST, found.record)
