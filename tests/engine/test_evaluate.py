"""`sightline.evaluate` and `sightline.predict`, with the examples of their docstrings."""

import doctest
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

import sightline
from sightline.engine.evaluate import evaluate, run_data
from sightline.engine.predict import predict
from sightline.hub import load
from sightline.tasks.classification.config import Data
from sightline.util.errors import FileError, InputError

from ..cli.classifiers import CLASSES, pictures, run_folder


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run folder runs/quick and a photo in the current folder."""
    pictures(tmp_path / "data" / "val", count=2)
    run_folder(tmp_path / "runs" / "quick", tmp_path / "data")
    Image.new("RGB", (50, 40), "red").save(tmp_path / "photo.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs" / "quick"


@pytest.mark.parametrize("door", [evaluate, predict])
@pytest.mark.usefixtures("run")
def test_the_example_runs(door: Callable[..., object]) -> None:
    (example,) = doctest.DocTestFinder(recurse=False).find(door, globs={"sightline": sightline})
    assert example.examples
    assert doctest.DocTestRunner().run(example).failed == 0


def test_scores(run: Path) -> None:
    scores = evaluate(load(run), workers=0, device="cpu")
    assert scores.images == 6
    assert scores.confusion is not None
    assert int(scores.confusion.sum()) == 6
    assert [row["class"] for row in scores.per_class] == list(CLASSES)
    assert dict(scores)["top1"] == scores["top1"] == pytest.approx(100 * float(scores.confusion.trace()) / 6)
    assert evaluate(load(run), workers=0, device="cpu", img_size=40).size == (40, 40)


def test_a_path_is_opened(run: Path) -> None:
    assert dict(evaluate(run, workers=0, device="cpu")) == dict(evaluate(load(run), workers=0, device="cpu"))
    (result,) = predict(str(run), "photo.png", top=1, device="cpu")
    assert result.found == next(predict(load(run), "photo.png", top=1, device="cpu")).found


def test_unreadable_images(run: Path) -> None:
    loaded = load(run)
    (run.parents[1] / "data/val/red/bad.png").write_bytes(b"no image")
    Path("bad.png").write_bytes(b"no image")
    with pytest.raises(FileError, match=r"bad\.png"):
        evaluate(loaded, workers=0, device="cpu")
    assert evaluate(loaded, workers=0, device="cpu", on_error="skip").skipped == 1
    with pytest.raises(FileError, match=r"bad\.png.*on_error=skip"):
        list(predict(loaded, "bad.png", device="cpu"))
    with pytest.raises(InputError, match=r"^on_error: "):
        predict(loaded, "bad.png", device="cpu", on_error="x")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"^images: expected paths and PIL images; got tensor"):
        list(predict(loaded, torch.zeros(3, 9, 9), device="cpu"))  # type: ignore[arg-type]
    bad, good = predict(loaded, ["bad.png", Image.new("RGB", (9, 9))], device="cpu", on_error="skip")
    assert bad.error is not None
    assert "bad.png" in bad.error
    assert len(good.found) == 3


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"batch_size": 0}, "^batch_size: .*0"),
        ({"limit": 0}, "^limit: .*0"),
        ({"flip": True}, "flip"),
        ({"device": "x"}, "x"),
        ({"workers": 99999}, "^workers: .*99999"),
        ({"on_error": "x"}, "^on_error: .*'x'"),
        ({"precision": "x"}, "^precision: .*'x'"),
        ({"img_size": "x"}, "^img_size: .*'x'"),
        ({"img_size": (0, 8)}, "^img_size: .*0"),
        ({"labels": 5}, "^labels: .*5"),
        ({"split": 3}, "^split: .*3"),
    ],
)
def test_bad_options(run: Path, options: dict[str, object], name: str) -> None:
    with pytest.raises(InputError, match=name):
        evaluate(load(run), **options)  # type: ignore[arg-type]


def test_weights_of_another_task_than_their_folder(run: Path) -> None:
    assert isinstance(run_data(run, "classification"), Data)
    assert isinstance(run_data(run / "checkpoints/best/model.safetensors", "classification"), Data)
    assert run_data(run.parents[1] / "photo.png", "classification") is None
    (run / "config.yaml").write_text("task: detection\n")
    with pytest.raises(InputError, match="detection"):
        evaluate(load(run))
