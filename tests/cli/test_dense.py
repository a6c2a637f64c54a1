"""`sightline train`, `eval` and `predict` of segmenters and detectors: a short run, its scores and its pictures."""

import csv
import json
import re
import resource
import shutil
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import load_file, save_file

from sightline.cli.main import main
from sightline.models.weights.reader import read_weights
from sightline.tasks.dense.backbone import Backbone
from tests.tasks.detection import tiny as detection
from tests.tasks.segmentation import tiny as segmentation

TINY: dict[str, Any] = {"segmentation": segmentation, "detection": detection}


@pytest.fixture(scope="module", params=["segmentation", "detection"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder next to its `data`, and what the training `printed`."""
    root: Path = tmp_path_factory.mktemp(request.param)
    tiny = TINY[request.param]
    tiny.make_data(root / "data")
    recipe = {**tiny.RECIPE, "run": {**tiny.RECIPE["run"], "report": True}, "test": {}}
    if request.param == "detection":
        recipe["test"] = {"score": 0.0, "detections": 20}
    (root / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    arguments = ["--config", str(root / "recipe.yaml"), "--data", str(root / "data"), "--out", str(root / "run")]
    with (root / "printed").open("w") as file, redirect_stdout(file):
        assert main(["train", *arguments]) == 0
    return root / "run"


@pytest.mark.slow
def test_the_run_folder(run: Path) -> None:
    assert (run / "report.html").is_file()
    assert (run / "curves.png").is_file()
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == [1, 2]


@pytest.mark.slow
def test_eval_gives_what_training_gave(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "--checkpoint", str(run), "--json", "--workers", "0", "--device", "cpu"]) == 0
    facts = json.loads(capsys.readouterr().out)
    done = json.loads((run / "done.json").read_text())
    key = "miou" if facts["task"] == "segmentation" else "box_ap"
    assert facts["scores"][key] == pytest.approx(done[key], abs=1e-3)
    assert facts["images"] == 2


def test_eval_and_training_call_scores_the_same(run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["eval", "--checkpoint", str(run), "--out", str(tmp_path), "--workers", "0"]) == 0
    printed = capsys.readouterr().out
    scores = json.loads((tmp_path / "eval.json").read_text())["scores"]
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert set(last) - {"epoch", "step", "train_loss", "lr", "images_per_second"} == set(scores)
    trained = re.findall(r", (\D+?(?:50|75)?) [\d.]+ %", (run.parent / "printed").read_text())
    assert len(set(trained)) == (3 if "segmentation" in str(run) else 2)
    assert [name for name in trained if f"{name} %" not in printed] == []
    page = (run / "report.html").read_text()
    assert [name for name in trained if f"<span>{name}, best</span>" not in page] == []


def test_eval_prints_a_table(run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    data = str(run.parent / "data")
    more = ["--slide", "--scales", "0.5,1.0", "--flip"] if "segmentation" in str(run) else []
    given = ["--checkpoint", str(run / "checkpoints/best/model.safetensors"), "--data", data, "--out", str(tmp_path)]
    assert main(["eval", *given, "--workers", "0", "--batch-size", "1", *more]) == 0
    out = capsys.readouterr().out
    assert "square" in out
    assert "By class" in out
    wanted = ["eval.json", "per_class.csv"]
    wanted += ["confusion.csv", "confusion.png"] if "segmentation" in str(run) else []
    assert out.splitlines()[-1] == f"wrote {', '.join(str(tmp_path / name) for name in wanted)}"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(wanted)


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_eval_keeps_tables_of_the_classes(run: Path, tmp_path: Path) -> None:
    assert main(["eval", "--checkpoint", str(run), "--workers", "0", "--out", str(tmp_path), "--json"]) == 0
    facts = json.loads((tmp_path / "eval.json").read_text())
    rows = read_csv(tmp_path / "per_class.csv")
    assert [row["class"] for row in rows] == facts["classes"]
    if facts["task"] == "detection":
        assert [float(row["mask_ap"]) for row in rows] == [row["mask_ap"] for row in facts["per_class"]]
        assert list(rows[0]) == ["class", "box_ap", "mask_ap"]
        assert "confusion" not in facts
        return
    assert list(rows[0]) == ["class", "pixels", "iou", "accuracy"]
    lines = read_csv(tmp_path / "confusion.csv")
    counts = [[int(line[name]) for name in facts["classes"]] for line in lines]
    assert counts == facts["confusion"]
    assert [next(iter(line.values())) for line in lines] == facts["classes"]
    assert [int(row["pixels"]) for row in rows] == [sum(line) for line in counts]
    for i, row in enumerate(rows):
        union = sum(counts[i]) + sum(line[i] for line in counts) - counts[i][i]
        assert float(row["iou"]) == pytest.approx(100 * counts[i][i] / union, abs=1e-4)
    with Image.open(tmp_path / "confusion.png") as picture:
        assert min(picture.size) > 100


def test_predict_draws(run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    image = next((run.parent / "data").rglob("0.png"))
    target = tmp_path / "seen.png"
    more = [] if "segmentation" in str(run) else ["--score", "0.0"]
    assert main(["predict", str(image), "--checkpoint", str(run), "--out", str(target), *more, "--json"]) == 0
    (fact,) = json.loads(capsys.readouterr().out)
    assert fact["picture"] == str(target)
    assert fact["found"]
    with Image.open(target) as picture, Image.open(image) as original:
        assert picture.height == original.height
        assert picture.tobytes() != original.convert("RGB").tobytes()


def test_bad_input_is_one_line(run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    weights = str(shutil.copy(run / "checkpoints/best/model.safetensors", tmp_path))
    for arguments, message in (
        (["eval", "--checkpoint", weights], "--data: "),
        (["eval", "--checkpoint", weights, "--data", str(tmp_path)], str(tmp_path)),
        (["predict", str(tmp_path / "no.png"), "--checkpoint", weights], "no.png"),
    ):
        assert main(arguments) == 2
        captured = capsys.readouterr().err
        assert message in captured
        assert captured.count("\n") == 1


def test_eval_names_its_own_option(run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    data = TINY[run.parent.name.rstrip("0123456789")].make_data(tmp_path / "data")
    given = ["eval", "--checkpoint", str(run), "--data", str(data), "--workers", "0"]
    path = next(path for path in data.rglob("0.png") if path.parent.name.startswith("val"))
    for spoil in (lambda: path.write_bytes(b"words"), path.unlink):
        spoil()
        assert main(given) == 2
        captured = capsys.readouterr().err
        assert "--on-error skip" in captured
        assert captured.count("\n") == 1
    path.write_bytes(b"words")
    assert main([*given, "--on-error", "skip", "--json"]) == 0
    out, err = capsys.readouterr()
    facts = json.loads(out, parse_constant=pytest.fail)
    assert len(facts["broken"]) == 1
    assert facts["images"] == len([each for each in path.parent.iterdir() if each.suffix == ".png"]) - 1
    assert "skipped: " in err


def forged(run: Path, target: Path, **fields: Any) -> str:
    """The weights of a run with other fields in the head of their card; None leaves one out."""
    path = run / "checkpoints/best/model.safetensors"
    metadata, tensors = read_weights(path).metadata, load_file(path)
    head = json.loads(metadata["head"]) | fields
    kept = {key: value for key, value in head.items() if value is not None or key in ("anchor", "short")}
    save_file(tensors, target, metadata | {"head": json.dumps(kept)})
    return str(target)


DAMAGE = [
    {"long": None}, {"short": "x"}, {"short": 10**9}, {"name": []}, {"channels": "many"},
    {"test": None, "score": None}, {"test": [], "nms": 5}, {"test": {"mode": "slide"}, "detections": 2.5},
    {"test": {"mode": "whole", "stride": 0, "scales": [1.0], "flip": False}, "anchor": "wide"},
    {"test": {"mode": "whole", "stride": None, "scales": [], "flip": False}, "score": True},
]  # fmt: skip


@pytest.mark.parametrize("fields", DAMAGE, ids=str)
def test_a_damaged_card_is_one_line(
    run: Path, fields: dict[str, Any], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    weights = forged(run, tmp_path / "forged.safetensors", **fields)
    image = next((run.parent / "data").rglob("0.png"))
    for arguments in (
        ["eval", "--data", str(run.parent / "data"), "--workers", "0"],
        ["predict", str(image), "--out", str(tmp_path / "seen.png")],
    ):
        assert main([*arguments, "--checkpoint", weights]) == 2
        captured = capsys.readouterr().err
        assert captured.startswith(f"sightline: error: {weights}: ")
        assert "card" in captured
        assert captured.count("\n") == 1


def test_a_forged_card_takes_no_memory(
    run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    original = Backbone.__init__

    def watched(self: Any, *arguments: Any, **options: Any) -> None:
        made.append(torch.get_default_device().type)
        original(self, *arguments, **options)

    monkeypatch.setattr(Backbone, "__init__", watched)
    weights = forged(run, tmp_path / "forged.safetensors", channels=256)
    assert main(["eval", "--checkpoint", weights, "--data", str(run.parent / "data")]) == 2
    assert f"sightline: error: {weights}: " in capsys.readouterr().err
    assert made == ["meta"]


def error_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The line that ends a command."""
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    return captured.err


def test_options_of_other_tasks_are_rejected(run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    segments = "segmentation" in str(run)
    image = str(next((run.parent / "data").rglob("0.png")))
    predict = ["predict", image, "--checkpoint", str(run), "--out", str(tmp_path / "seen")]
    for command, options in (
        (predict, {"--attention": "a.png", "--query": "class", "--top": "3", "--img-size": "64"}),
        (["eval", "--checkpoint", str(run)], {"--img-size": "64", "--labels": "order", "--model-args": "depths=2"}),
    ):
        for name, value in options.items():
            line = error_line([*command, name, value], capsys)
            assert line.startswith(f"sightline: error: {run if name == '--model-args' else f'{name}: '}")
    assert not (tmp_path / "seen").exists()
    if segments:
        assert "--score: " in error_line([*predict, "--score", "0.1"], capsys)
    else:
        line = error_line(["eval", "--checkpoint", str(run), "--slide", "--scales", "1.0", "--flip"], capsys)
        assert line.startswith("sightline: error: --slide, --scales, --flip: ")


def test_commands_of_classifiers_reject_the_weights(
    run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    weights = str(run / "checkpoints/best/model.safetensors")
    what = "a segmenter" if "segmentation" in str(run) else "a detector"
    for arguments in (
        ["convert", weights, str(tmp_path / "out.safetensors")],
        ["analyze", "locality", "--checkpoint", weights],
    ):
        line = error_line(arguments, capsys)
        assert line.startswith(f"sightline: error: {weights}: ")
        assert "classifier" in line
    given = ["--model.checkpoint", str(run), "--out", str(tmp_path / "run"), "--data.limit", "4"]
    line = error_line(["train", "--config", "quick", *given], capsys)
    assert line.startswith(f"sightline: error: {run}")
    assert what in line


def test_a_folder_that_cannot_be_written_is_named_by_its_option(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = str(next((run.parent / "data").rglob("0.png")))
    for target in ("/proc/x", "/proc/x.png"):
        line = error_line(["predict", image, "--checkpoint", str(run), "--out", target], capsys)
        assert line.startswith("sightline: error: --out: ")
        assert "/proc" in line


def test_a_picture_that_does_not_fit_on_the_disk(run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    image = str(next((run.parent / "data").rglob("0.png")))
    target = tmp_path / "0.png"
    target.write_bytes(b"one of another day")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (600, before[1]))
    try:
        line = error_line(["predict", image, "--checkpoint", str(run), "--out", str(tmp_path)], capsys)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert line.startswith(f"sightline: error: {target}: ")
    assert "file too large" in line
    assert "--out" in line
    assert target.read_bytes() == b"one of another day"
    assert [path.name for path in tmp_path.iterdir()] == ["0.png"]


def test_pictures_take_no_image_away(run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    image = tmp_path / "photo.png"
    image.write_bytes(next((run.parent / "data").rglob("0.png")).read_bytes())
    for target in (tmp_path, image, tmp_path / "x" / ".."):
        (tmp_path / "x").mkdir(exist_ok=True)
        line = error_line(["predict", str(image), "--checkpoint", str(run), "--out", str(target)], capsys)
        assert line.startswith("sightline: error: --out: ")
        assert "photo.png" in line
    with Image.open(image) as kept:
        assert kept.size in ((64, 64), (112, 96))


def test_scores_are_shares(run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    image = str(next((run.parent / "data").rglob("0.png")))
    command = ["predict", image, "--checkpoint", str(run), "--out", str(tmp_path / "seen")]
    for score in ("-0.5", "50"):
        line = error_line([*command, "--score", score], capsys)
        assert line.startswith("sightline: error: --score: ")
        assert score in line
    if "segmentation" in str(run):
        line = error_line([*command, "--score", "0.4"], capsys)
        assert line.startswith("sightline: error: --score: ")
        assert "segmentation" in line


def test_weights_of_any_checkpoint(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The last ones too, by their folder; on the images that they were trained on."""
    split = "train" if "segmentation" in str(run) else "train2017"
    more = ["--data", str(run.parent / "data"), "--split", split, "--workers", "0", "--json"]
    for name in ("best", "last"):
        assert main(["eval", "--checkpoint", str(run / "checkpoints" / name), *more]) == 0
        facts = json.loads(capsys.readouterr().out)
        assert facts["checkpoint"] == str(run / "checkpoints" / name / "model.safetensors")
        assert split in facts["data"]


def test_a_configuration_of_another_task(run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    task = "detection" if "segmentation" in str(run) else "segmentation"
    for other in (task, "classification"):
        (folder / "config.yaml").write_text(f"task: {other}\n")
        line = error_line(["eval", "--checkpoint", str(folder), "--data", str(run.parent / "data")], capsys)
        assert f"config.yaml: of {other}, but the weights are of" in line


def test_skipped_images_are_told_once(run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    data = TINY[run.parent.name.rstrip("0123456789")].make_data(tmp_path / "data")
    paths = [
        path for path in data.rglob("*.png") if path.parent.name in ("val", "val2017") and "masks" not in str(path)
    ]
    for path in paths:
        path.write_bytes(b"words")
    given = ["--checkpoint", str(run), "--data", str(data), "--workers", "0", "--on-error", "skip"]
    assert main(["eval", *given]) == 0
    out = capsys.readouterr().out
    assert out.count("skipped: ") == len(paths) == 2
    assert "No image could be used." in out
