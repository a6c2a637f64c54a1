"""`sightline eval`."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from sightline.cli.main import main
from sightline.data.labels import imagenet_classes
from sightline.tasks.card import ModelCard

from .checkpoints import public, save, small
from .classifiers import CLASSES, by_hand, classifier, pictures, run_folder

CAPTURE = pytest.CaptureFixture[str]
FAST = ["--workers", "0", "--device", "cpu"]


def evaluate(capsys: CAPTURE, *arguments: str) -> dict[str, Any]:
    assert main(["eval", *arguments, *FAST, "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def top(found: list[tuple[int, list[float]]], k: int) -> float:
    hits = [label in sorted(range(len(p)), key=lambda i: -p[i])[:k] for label, p in found]
    return 100 * sum(hits) / len(hits)


def test_against_a_loop_by_hand(tmp_path: Path, capsys: CAPTURE) -> None:
    data = pictures(tmp_path / "data" / "val", count=9)
    model = classifier(tmp_path / "model.safetensors")
    facts = evaluate(capsys, "--checkpoint", str(tmp_path / "model.safetensors"), "--data", str(data.parent))
    (result,) = facts["results"]
    expected = by_hand(model, data, ModelCard("", input_size=(3, 32, 32)))
    assert result["images"] == 27
    assert result["img_size"] == [32, 32]
    assert result["top1"] == pytest.approx(top(expected, 1), abs=1e-3)
    assert 0 < result["top1"] < 100  # or the comparison would say little
    assert result["top5"] == 100
    confusion = [[0] * 3 for _ in range(3)]
    for label, p in expected:
        confusion[label][p.index(max(p))] += 1
    assert result["confusion"] == confusion
    assert facts["classes"] == list(CLASSES)
    assert [row["recall"] for row in result["per_class"]] == pytest.approx(
        [100 * confusion[i][i] / 9 for i in range(3)], abs=1e-3
    )


def test_several_sizes_in_one_run(tmp_path: Path, capsys: CAPTURE) -> None:
    data = pictures(tmp_path / "val", count=6)
    model = classifier(tmp_path / "model.safetensors")
    arguments = ["--checkpoint", str(tmp_path / "model.safetensors"), "--data", str(tmp_path)]
    facts = evaluate(capsys, *arguments, "--img-size", "32,48", "--img-size", "24x40")
    sizes = [(32, 32), (48, 48), (24, 40)]
    assert [tuple(result["img_size"]) for result in facts["results"]] == sizes
    for size, result in zip(sizes, facts["results"], strict=True):
        expected = by_hand(model, data, ModelCard("", input_size=(3, *size)))
        assert result["top1"] == pytest.approx(top(expected, 1), abs=1e-3)


def test_a_run_folder_knows_its_data(tmp_path: Path, capsys: CAPTURE) -> None:
    pictures(tmp_path / "data" / "train")
    pictures(tmp_path / "data" / "val", count=2)
    run_folder(tmp_path / "run", tmp_path / "data")
    assert evaluate(capsys, "--checkpoint", str(tmp_path / "run"))["results"][0]["images"] == 6
    train = evaluate(capsys, "--checkpoint", str(tmp_path / "run"), "--split", "train")
    assert train["results"][0]["images"] == 12


def test_the_limit_of_a_run_is_noted(tmp_path: Path, capsys: CAPTURE) -> None:
    pictures(tmp_path / "data" / "val", count=4)
    run_folder(tmp_path / "run", tmp_path / "data")
    config = tmp_path / "run/config.yaml"
    config.write_text(config.read_text().replace("size:", "limit: 2\n  size:"))
    whole = evaluate(capsys, "--checkpoint", str(tmp_path / "run"))
    assert whole["results"][0]["images"] == 12
    assert all(text in whole["notes"][0] for text in ("data.limit", " 2 "))
    part = evaluate(capsys, "--checkpoint", str(tmp_path / "run"), "--limit", "2")
    assert part["results"][0]["images"] == 6
    assert part["notes"] == []


def test_the_embedded_data_have_a_name(tmp_path: Path, capsys: CAPTURE) -> None:
    from sightline.tasks.classification.config import Data
    from sightline.tasks.classification.data import open_split

    classes = open_split(Data(), "val").classes
    classifier(tmp_path / "run/checkpoints/best/model.safetensors", classes)
    (tmp_path / "run/config.yaml").write_text("data: {size: 32}")
    file = str(tmp_path / "run/checkpoints/best/model.safetensors")
    for source in (["--checkpoint", str(tmp_path / "run")], ["--checkpoint", file, "--data", "embedded"]):
        assert main(["eval", *source, *FAST, "--limit", "1"]) == 0
        assert "10 images of 10 classes in the embedded Fashion-MNIST (test), cpu" in capsys.readouterr().out


def test_workers_do_not_matter(tmp_path: Path, capsys: CAPTURE) -> None:
    pictures(tmp_path / "val", count=5)
    classifier(tmp_path / "model.safetensors")
    arguments = ["eval", "--checkpoint", str(tmp_path / "model.safetensors"), "--data", str(tmp_path), "--json"]
    found = []
    for more in (["--workers", "0", "--batch-size", "4"], ["--workers", "2", "--batch-size", "64"]):
        assert main([*arguments, *more, "--device", "cpu"]) == 0
        result = json.loads(capsys.readouterr().out)["results"][0]
        found.append(result)
    assert found[0]["confusion"] == found[1]["confusion"]
    assert found[0]["images"] == found[1]["images"] == 15
    assert found[0]["ece"] == pytest.approx(found[1]["ece"], abs=1e-3)


def test_public_checkpoint_on_folders_of_imagenet(tmp_path: Path, capsys: CAPTURE) -> None:
    some = (imagenet_classes()[0], imagenet_classes()[217], imagenet_classes()[999])
    data = pictures(tmp_path / "val", some)
    model = small("deit", num_classes=1000, img_size=224)
    source = save({"model": public(model)}, tmp_path / "public.pth")
    facts = evaluate(capsys, "--checkpoint", source, "--data", str(tmp_path))
    (result,) = facts["results"]
    expected = [
        ((0, 217, 999)[label], p) for label, p in by_hand(model, data, ModelCard("", input_size=(3, 224, 224)), some)
    ]
    assert result["top5"] == pytest.approx(top(expected, 5), abs=1e-3)
    assert [i for i, row in enumerate(result["per_class"]) if row["images"]] == [0, 217, 999]
    assert facts["classes"][0].startswith("tench")


def test_imagenet_v2_folders_are_places(tmp_path: Path, capsys: CAPTURE) -> None:
    pictures(tmp_path / "v2", ("0", "2", "10"), count=2)
    model = small("deit", num_classes=1000, img_size=32)
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.copy_(torch.arange(1000) == 10)  # always says 10
    source = save(public(model), tmp_path / "public.pth")
    for way in ("v2", "names"):
        facts = evaluate(capsys, "--checkpoint", source, "--data", str(tmp_path / "v2"), "--labels", way)
        assert facts["results"][0]["top1"] == pytest.approx(100 / 3, abs=1e-3)
        assert facts["results"][0]["per_class"][10]["recall"] == 100


def test_real_labels(tmp_path: Path, capsys: CAPTURE) -> None:
    folder = tmp_path / "val" / imagenet_classes()[65]
    folder.mkdir(parents=True)
    (tmp_path / "val" / imagenet_classes()[3]).mkdir()
    for i in (1, 2, 3):
        Image.new("RGB", (40, 40), (i, 99, 0)).save(folder / f"ILSVRC2012_val_{i:08d}.png")
    Image.new("RGB", (40, 40)).save(tmp_path / "val" / imagenet_classes()[3] / "ILSVRC2012_val_00000004.png")
    model = small("deit", num_classes=1000, img_size=32)
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.copy_(torch.arange(1000) == 65)
    source = save(public(model), tmp_path / "public.pth")
    sets = [[65, 7], [8], [], [65]]
    (tmp_path / "real.json").write_text(json.dumps(sets))
    facts = evaluate(capsys, "--checkpoint", source, "--data", str(tmp_path), "--labels", str(tmp_path / "real.json"))
    usual, real = facts["results"]
    assert (usual["labels"], usual["images"], usual["top1"]) == ("usual", 4, 75)
    assert (real["labels"], real["images"]) == ("real", 3)  # one image has no right answer
    assert real["top1"] == pytest.approx(200 / 3, abs=1e-3)
    published = evaluate(capsys, "--checkpoint", source, "--data", str(tmp_path), "--labels", "real")
    assert published["results"][1]["labels"] == "real"  # with the sets that timm carries


def test_broken_images(tmp_path: Path, capsys: CAPTURE) -> None:
    pictures(tmp_path / "val")
    (tmp_path / "val" / "red" / "bad.png").write_bytes(b"\x89PNG\r\n\x1a\nnothing")
    classifier(tmp_path / "model.safetensors")
    arguments = ["--checkpoint", str(tmp_path / "model.safetensors"), "--data", str(tmp_path)]
    assert main(["eval", *arguments, *FAST]) == 2
    err = capsys.readouterr().err
    assert "bad.png" in err
    assert "--on-error skip" in err
    assert err.count("\n") == 1
    facts = evaluate(capsys, *arguments, "--on-error", "skip")
    assert facts["results"][0]["images"] == 12
    assert facts["results"][0]["skipped"] == 1
    assert "bad.png" in facts["broken"][0]


def test_tables_and_files(tmp_path: Path, capsys: CAPTURE) -> None:
    pictures(tmp_path / "val")
    classifier(tmp_path / "model.safetensors")
    out = tmp_path / "out"
    arguments = ["--checkpoint", str(tmp_path / "model.safetensors"), "--data", str(tmp_path), "--out", str(out)]
    assert main(["eval", *arguments, *FAST, "--img-size", "32,40"]) == 0
    shown = capsys.readouterr().out
    for text in ("top-1 %", "ECE %", "32x32", "40x40", "By class", "green"):
        assert text in shown
    names = [f"{what}-{size}.{kind}" for size in ("32x32", "40x40")
             for what, kind in (("per_class", "csv"), ("confusion", "csv"), ("confusion", "png"))]  # fmt: skip
    assert shown.splitlines()[-1] == f"wrote {', '.join(str(out / name) for name in ('eval.json', *names))}"
    assert len(json.loads((out / "eval.json").read_text())["results"]) == 2
    with (out / "per_class-40x40.csv").open() as file:
        assert [row["class"] for row in csv.DictReader(file)] == list(CLASSES)
    with (out / "confusion-32x32.csv").open() as file:
        counts = [[int(cell) for cell in line[1:]] for line in list(csv.reader(file))[1:]]
    assert counts == json.loads((out / "eval.json").read_text())["results"][0]["confusion"]
    with Image.open(out / "confusion-32x32.png") as picture:
        assert min(picture.size) > 100


def test_other_models_of_timm(tmp_path: Path, capsys: CAPTURE) -> None:
    from sightline.engine.checkpoint import write_weights
    from sightline.tasks.create import create

    pictures(tmp_path / "val")
    args = {"num_classes": 3, "img_size": 32, "patch_size": 16, "embed_dim": 16, "depth": 1, "num_heads": 2}
    card = ModelCard("vit_tiny_patch16_224", args, CLASSES, (3, 32, 32))
    write_weights(tmp_path / "model.safetensors", create(card.name, args), card)
    arguments = ["--checkpoint", str(tmp_path / "model.safetensors"), "--data", str(tmp_path)]
    assert evaluate(capsys, *arguments)["model"].startswith("vit_tiny_patch16_224 (")
    assert main(["eval", *arguments, *FAST, "--img-size", "48"]) == 2  # this one takes no other size
    err = capsys.readouterr().err
    assert "48x48" in err
    assert "Traceback" not in err


def test_a_card_names_no_other_files(tmp_path: Path, capsys: CAPTURE) -> None:
    from safetensors.torch import save_file

    card = ModelCard("vit_tiny_patch16_224", {"checkpoint_path": "/etc/passwd"}, CLASSES)
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors", card.to_metadata())
    assert main(["eval", "--checkpoint", str(tmp_path / "model.safetensors"), "--data", str(tmp_path)]) == 2
    assert "checkpoint_path" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--data"),
        (["--checkpoint", "none.pth", "--data", "."], "none.pth"),
        (["--checkpoint", "MODEL"], "--data"),
        (["--checkpoint", "MODEL", "--data", "nowhere"], "nowhere"),
        (["--checkpoint", "MODEL", "--data", "DATA", "--img-size", "big"], "--img-size"),
        (["--checkpoint", "MODEL", "--data", "DATA", "--labels", "rael"], "--labels"),
        (["--checkpoint", "MODEL", "--data", "DATA", "--labels", "real"], "1000 classes"),
        (["--checkpoint", "MODEL", "--data", "DATA", "--labels", "v2"], "'blue'"),
        (["--checkpoint", "MODEL", "--data", "DATA", "--batch-size", "0"], "--batch-size"),
        (["--checkpoint", "MODEL", "--data", "DATA", "--batch-size", "many"], "many"),
        (["--checkpoint", "MODEL", "--data", "DATA", "--device", "quantum"], "--device"),
        (["--checkpoint", "MODEL", "--data", "DATA", "--precision", "fp61"], "--precision"),
        (["--checkpoint", "MODEL", "--data", "DATA", "--on-error", "skp"], "--on-error"),
        (["--checkpoint", "MODEL", "--data", "DATA", "--limit", "0"], "--limit"),
        (["--checkpoint", "MODEL", "--data", "DATA", "--out", "MODEL"], "--out"),
        (["--checkpoint", "MODEL", "--data", "DATA", "--out", "/proc/x"], "/proc/x"),
        (["--checkpoint", "MODEL", "--data", "DATA", "--out", ""], "--out: "),
        (["--checkpoint", "MODEL", "--data", ""], "--data: "),
        (["--checkpoint", "", "--data", "DATA"], "--checkpoint: "),
        (["--checkpoint", "MODEL", "--data", "DATA", "--split", "nope"], "nope"),
        (["--checkpoint", "DATA", "--data", "DATA"], "no weights"),
        (["--checkpoint", "MODEL", "--data", "OTHER"], "'cyan'"),
        (["--checkpoint", "MODEL", "--dta", "DATA"], "--dta"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, capsys: CAPTURE, arguments: list[str], message: str) -> None:
    pictures(tmp_path / "data" / "val", count=1)
    pictures(tmp_path / "other" / "val", ("blue", "cyan"), count=1)
    classifier(tmp_path / "model.safetensors")
    places = {"MODEL": tmp_path / "model.safetensors", "DATA": tmp_path / "data", "OTHER": tmp_path / "other"}
    assert main(["eval", *(str(places.get(word, word)) for word in arguments), "--workers", "0"]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_numbers_have_limits(capsys: CAPTURE) -> None:
    for name, value in (("--workers", "99999"), ("--batch-size", str(10**60)), ("--limit", str(10**60))):
        assert main(["eval", "--checkpoint", "none", name, value]) == 2
        err = capsys.readouterr().err
        assert all(part in err for part in (f"{name}: ", value)), err


def test_damaged_metadata_is_named(tmp_path: Path, capsys: CAPTURE) -> None:
    from safetensors.torch import load_file, save_file

    path = tmp_path / "model.safetensors"
    classifier(path)
    card = ModelCard("inline_deit_tiny", {}, CLASSES).to_metadata()
    save_file(load_file(path), path, {**card, "input": "{}"})
    assert main(["eval", "--checkpoint", str(path), "--data", str(tmp_path)]) == 2
    assert str(path) in capsys.readouterr().err
