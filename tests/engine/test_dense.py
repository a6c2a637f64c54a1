"""A dense run that is stopped resumes to the same weights, bit by bit; broken images are skipped on request."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import load_file

from sightline.cli.main import main
from sightline.data.images import ImageError
from sightline.data.order import Placement
from sightline.tasks.registry import TASKS
from sightline.util.errors import InputError, RunError
from tests.engine.tiny import metrics, train, weights
from tests.tasks.detection import tiny as detection
from tests.tasks.segmentation import tiny as segmentation


@pytest.mark.slow
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
    with pytest.raises(ValueError, match=r"1\.png: cannot be read as an image.*on_error=skip"):
        train(segmentation.config(data, tmp_path / "stop", run={"resume": "never"}))
    folder = train(segmentation.config(data, tmp_path / "skip", data={"on_error": "skip"}))
    assert folder is not None
    assert "skipped: " in capsys.readouterr().out
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["skipped_images"] == 1


def without_truth(tiny: Any, root: Path) -> Path:
    """Data whose evaluation split has nothing to score: every pixel ignored, or no objects."""
    data: Path = tiny.make_data(root)
    if tiny is detection:
        detection.change(data, "val2017", annotations=list.clear)
    for path in (data / "masks/val").glob("*.png"):
        Image.fromarray(np.full((64, 64), 9, np.uint8)).save(path)
    return data


@pytest.mark.parametrize("tiny", [segmentation, detection], ids=["segmentation", "detection"])
def test_without_a_score_the_last_weights_are_the_best(
    tmp_path: Path, tiny: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    data = without_truth(tiny, tmp_path / "data")
    folder = train(
        tiny.config(data, tmp_path / "run", test={"score": 0.0, "detections": 20} if tiny is detection else {})
    )
    assert folder is not None
    done = json.loads((folder / "done.json").read_text())
    assert done["miou" if tiny is segmentation else "box_ap"] is None
    best, last = (load_file(folder / "checkpoints" / name / "model.safetensors") for name in ("best", "last"))
    assert all(value.equal(last[key]) for key, value in best.items())
    assert "NaN" not in (folder / "metrics.jsonl").read_text()
    out = capsys.readouterr().out
    assert out.count("nothing to score") == 2
    words = "mIoU" if tiny is segmentation else "box AP"
    assert f"no {words}, since nothing to evaluate could be scored: checkpoints/best has the last weights; in " in out
    assert main(["eval", "--checkpoint", str(folder), "--workers", "0"]) == 0
    assert "Nothing in these images can be scored" in capsys.readouterr().out


def test_a_score_that_comes_late_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sightline.tasks.base import Scores

    scores = iter([float("nan"), 3.0, 2.0])
    monkeypatch.setattr(Scores, "__iter__", lambda _: iter([("miou", next(scores))]))
    data = segmentation.make_data(tmp_path / "data")
    folder = train(segmentation.config(data, tmp_path / "run", schedule={"epochs": 3}))
    assert folder is not None
    done = json.loads((folder / "done.json").read_text())
    assert (done["miou"], done["epoch"]) == (3.0, 2)


@pytest.mark.parametrize("tiny", [segmentation, detection], ids=["segmentation", "detection"])
def test_nothing_usable_ends_in_a_line(tmp_path: Path, tiny: Any) -> None:
    data = tiny.make_data(tmp_path / "data")
    folder = data / ("images/train" if tiny is segmentation else "train2017")
    for path in folder.iterdir():
        path.write_bytes(b"words")
    with pytest.raises(ImageError, match=r"^no usable image to train on: .*[01]\.png.*; repair them$"):
        train(tiny.config(data, tmp_path / "run", data={"on_error": "skip"}))


@pytest.mark.parametrize("tiny", [segmentation, detection], ids=["segmentation", "detection"])
@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"data": {"std": [0.2, 0.2]}}, r"^data\.std: .*\[0\.2, 0\.2\]"),
        ({"data": {"mean": [0.5, 0.5, 0.5, 0.5]}}, r"^data\.mean: .*\[0\.5, 0\.5, 0\.5, 0\.5\]"),
        ({"model": {"args": {"in_chans": 1}}}, "model.args: in_chans is 3"),
    ],
)
def test_images_have_three_channels(tmp_path: Path, tiny: Any, sections: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        tiny.config(tmp_path, tmp_path / "run", **sections)


@pytest.mark.parametrize("tiny", [segmentation, detection], ids=["segmentation", "detection"])
def test_convolutions_before_attention(tmp_path: Path, tiny: Any) -> None:
    """A backbone of both trains; its maps must be those that decoders expect."""
    data = tiny.make_data(tmp_path / "data")
    small = {"embed_dims": [8, 16, 16, 32], "num_heads": [1, 1, 1, 2], "conv_depths": [1, 1, 1, 0],
             "depths": [0, 0, 1, 1]}  # fmt: skip
    model = {"name": "inline_conv_small", "args": small}
    train(tiny.config(data, tmp_path / "run", model=model, run={"max_steps": 1}))
    assert metrics(tmp_path / "run")[0]["train_loss"] > 0
    model["args"] = {**small, "stem_stride": 2}
    with pytest.raises(InputError, match=r"^model\.args: inline_conv_small .*\[2, 4, 8, 16\]"):
        train(tiny.config(data, tmp_path / "other", model=model))


def test_scales_are_needed(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^test\.scales: .*\[\]"):
        segmentation.config(tmp_path, tmp_path / "run", test={"scales": []})


@pytest.mark.parametrize("tiny", [segmentation, detection], ids=["segmentation", "detection"])
def test_images_to_evaluate_that_are_all_broken(tmp_path: Path, tiny: Any, capsys: pytest.CaptureFixture[str]) -> None:
    data = tiny.make_data(tmp_path / "data")
    for path in (data / ("images/val" if tiny is segmentation else "val2017")).iterdir():
        path.write_bytes(b"words")
    folder = train(tiny.config(data, tmp_path / "run", data={"on_error": "skip"}, run={"report": True}))
    assert folder is not None
    out = capsys.readouterr().out
    assert "skipped: 0 batches, 2 unreadable images" in out
    assert "checkpoints/best has the last weights" in out
    assert (folder / "checkpoints/best/model.safetensors").is_file()
    assert (folder / "report.html").is_file()


@pytest.fixture(scope="module", params=[segmentation, detection], ids=["segmentation", "detection"])
def unfinished(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A kind of run, and a folder with `data` and a `run` on them that has an epoch to go."""
    tiny, root = request.param, tmp_path_factory.mktemp("unfinished")
    data = tiny.make_data(root / "data", 3)
    sections = {"run": {"max_steps": 1}, **more_of(tiny)}
    folder = train(tiny.config(data, root / "run", **sections))
    assert folder is not None
    (folder / "done.json").unlink()
    return tiny, root


def more_of(tiny: Any) -> dict[str, Any]:
    return {"model": {"head": "cascade_mask_rcnn"}, "batch": {"size": 1}} if tiny is detection else {}


def other_classes(tiny: Any, data: Path) -> None:
    if tiny is segmentation:
        path = data / "classes.json"
        content = json.loads(path.read_text())
        content["classes"].append("more")
        path.write_text(json.dumps(content))
        return
    for split in ("train2017", "val2017"):
        detection.change(data, split, categories=lambda rows: rows.append({"id": 9, "name": "more"}))


@pytest.mark.slow
def test_other_data_do_not_resume(unfinished: tuple[Any, Path], tmp_path: Path) -> None:
    tiny, root = unfinished
    more, classes = tiny.make_data(tmp_path / "more", 4), tiny.make_data(tmp_path / "classes", 3)
    other_classes(tiny, classes)
    before = weights(root / "run")
    for data, message in (
        (more, r"data\.path: .* 4 images of"),
        (classes, r"data\.path: .* 3 images of"),
    ):
        with pytest.raises(InputError, match=message):
            train(tiny.config(data, root / "run", **more_of(tiny)))
    assert weights(root / "run") == before


def test_another_model_does_not_resume(unfinished: tuple[Any, Path]) -> None:
    tiny, root = unfinished
    head = "semantic_fpn" if tiny is segmentation else "mask_rcnn"
    for sections, keys in (
        ({"model": {"head": head}}, "model.head"),
        ({"model": {"name": "inline_swin_tiny", "args": {}}}, "model.name, model.args"),
    ):
        given = more_of(tiny) | sections
        with pytest.raises(InputError, match=f"was started with another {keys}"):
            train(tiny.config(root / "data", root / "run", **given))


def test_a_configuration_that_is_no_text(unfinished: tuple[Any, Path], tmp_path: Path) -> None:
    tiny, root = unfinished
    shutil.copytree(root / "run", tmp_path / "run")
    (tmp_path / "run/config.yaml").write_bytes(b"\xff\xfe: [")
    with pytest.raises(InputError, match="another configuration, which cannot be read"):
        train(tiny.config(root / "data", tmp_path / "run", **more_of(tiny)))


@pytest.mark.slow
def test_a_cascade_from_training_to_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Polygons, run lengths and a crowd; an image without objects and one with a crowd alone."""
    data = detection.make_data(tmp_path / "data", 4)

    def thin(rows: list[dict[str, Any]]) -> None:
        rows[:] = [row for row in rows if row["image_id"] != 101]
        for row in rows:
            row["iscrowd"] = int(row["iscrowd"] or row["image_id"] == 102)

    for split in ("train2017", "val2017"):
        detection.change(data, split, annotations=thin)
    sections = {
        "data": {**detection.RECIPE["data"], "empty": "keep"}, "schedule": {"epochs": 1},
        "test": {"score": 0.0, "detections": 20}, **more_of(detection),
    }  # fmt: skip
    folder = train(detection.config(data, tmp_path / "run", **sections))
    assert folder is not None
    capsys.readouterr()
    assert main(["eval", "--checkpoint", str(folder), "--workers", "0", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["images"] == 4
    assert {"box_ap", "mask_ap"} <= facts["scores"].keys()
    given = [str(data / "val2017"), "--checkpoint", str(folder), "--out", str(tmp_path / "seen"), "--score", "0"]
    assert main(["predict", *given]) == 0
    assert len(list((tmp_path / "seen").glob("*.png"))) == 4


@pytest.mark.slow
@pytest.mark.parametrize(("source", "target"), [(segmentation, detection), (detection, segmentation)])
def test_a_backbone_of_another_run(
    tmp_path: Path, source: Any, target: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    first = train(source.config(source.make_data(tmp_path / "source"), tmp_path / "first", schedule={"epochs": 1}))
    assert first is not None
    weights_of = load_file(first / "checkpoints/best/model.safetensors")
    trained = {key.partition("body.model.")[2]: value for key, value in weights_of.items() if "body.model." in key}
    data = target.make_data(tmp_path / "target")
    task = "segmentation" if target is segmentation else "detection"
    for checkpoint in (first, first / "checkpoints/best/model.safetensors"):
        config = target.config(data, tmp_path / "second", model={"checkpoint": str(checkpoint)})
        made = TASKS[task].make(config, Placement(torch.device("cpu"), 2))
        (body,) = (module for name, module in made.model.named_modules() if name.endswith("backbone.body.model"))
        started = body.state_dict()
        made.close()
        assert trained.keys() == started.keys()
        assert all(value.equal(trained[key]) for key, value in started.items())
        assert "a segmenter or detector; only its backbone is loaded" in capsys.readouterr().out
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(target.RECIPE))
    wider = {**target.BACKBONE, "embed_dims": [16, 32, 40, 128]}
    given = ["--config", str(recipe), "--data", str(data), "--model.checkpoint", str(first)]
    for args, message in (
        (["--model.args", json.dumps(wider)], "; give the model.name and model.args of these weights"),
        (["--model.name", "inline_swin_tiny", "--model.args", "{}"], "`sightline list '*pvt*'`"),
    ):
        assert main(["train", *given, "--out", str(tmp_path / "third"), *args]) == 2
        line = capsys.readouterr().err
        assert line.startswith(f"sightline: error: {first}: ")
        assert message in line
        assert line.count("\n") == 1
