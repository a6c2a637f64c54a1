"""The model that comes with the package, with made-up weights in its place."""

import json
import sys
from pathlib import Path

import pytest
import timm
import torch
from PIL import Image
from torch import nn

import sightline
from sightline.cli.main import main
from sightline.data.labels import imagenet_classes
from sightline.engine.analyze import Session
from sightline.engine.checkpoint import write_weights
from sightline.engine.settings import configure, load_recipe
from sightline.models import factory
from sightline.models.weights import packaged
from sightline.models.weights.published import Cached
from sightline.tasks.preprocess import card_of
from sightline.util.errors import InputError

sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))
import pack_box

NAME = packaged.DEFAULT


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of made-up weights of the packaged model."""
    torch.manual_seed(0)
    model = sightline.create_model(NAME)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.05)
    path = tmp_path_factory.mktemp("run") / "model.safetensors"
    write_weights(path, model, card_of(NAME, {"num_classes": 1000}, model, imagenet_classes(), 3, 224))
    return path


@pytest.fixture
def box(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same as the weights of the package."""
    monkeypatch.setattr(packaged, "FOLDER", tmp_path / "files")
    return pack_box.pack(sightline.load(run))


@torch.no_grad()
def test_a_run_becomes_the_file_of_the_package(run: Path, box: Path) -> None:
    before, after = sightline.load(run), sightline.load()
    assert 2 * sum(p.numel() for p in after.model.parameters()) < box.stat().st_size <= pack_box.LIMIT
    assert after.path == box
    assert after.classes == imagenet_classes()
    assert {p.dtype for p in after.model.parameters()} == {torch.float32}
    for own, packed in zip(before.model.parameters(), after.model.parameters(), strict=True):
        assert torch.equal(own.half().float(), packed)
    names = ("licence", "teacher", "images", "sha256", "made", "settings")
    facts = {**dict.fromkeys(names, ""), "bytes": 1, "agreement": 80.0, **pack_box.compare(before, box)}
    assert facts["difference"] < 0.02
    assert set(facts["seen"]) == {"cat.jpg", "coffee.jpg", "palace.jpg", "rocket.jpg"}
    assert "cat.jpg" in pack_box.page(facts)


@torch.no_grad()
def test_models_by_name_have_these_weights(box: Path) -> None:
    own = sightline.load().model.state_dict()
    model = timm.create_model(NAME, pretrained=True)
    assert all(torch.equal(value, own[key]) for key, value in model.state_dict().items())
    other = timm.create_model(NAME, pretrained=True, num_classes=7, in_chans=1)
    assert torch.equal(other.blocks[3].mlp.fc1.weight, own["blocks.3.mlp.fc1.weight"])
    assert other(torch.zeros(1, 1, 48, 32)).shape == (1, 7)


def test_predicts_without_a_checkpoint(box: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Image.new("RGB", (40, 30), "red").save(tmp_path / "red.png")
    assert main(["predict", str(tmp_path / "red.png"), "--top", "2", "--img-size", "64", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert len(found["predictions"]) == 2
    assert sightline.predict(None, Image.new("RGB", (9, 9)), img_size=32)


def test_a_training_begins_with_it(box: Path, tmp_path: Path) -> None:
    for split in ("train", "val"):
        for number, colour in enumerate(("red", "blue")):
            folder = tmp_path / "photos" / split / colour
            folder.mkdir(parents=True)
            Image.new("RGB", (40, 30 + number), colour).save(folder / "0.png")
    small = {"run.max_steps": 1, "batch.size": 2, "data.workers": 0, "run.report": False, "run.tensorboard": False}
    own = sightline.load().model.state_dict()["blocks.3.mlp.fc1.weight"]
    sightline.train("finetune", tmp_path / "photos", out=tmp_path / "run", **small, **{"data.size": 32})
    trained = sightline.load(tmp_path / "run").model.state_dict()["blocks.3.mlp.fc1.weight"]
    assert torch.allclose(trained, own, atol=1e-5)


def test_other_commands_begin_with_it(box: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(torch.device("cpu"))
    (item,) = session.load()
    assert (item.checkpoint, item.warning) == (str(box), None)
    (item,) = Session(torch.device("cpu")).load(classes=3)  # as for labeled images
    assert item.checkpoint == str(box)
    assert Session(torch.device("cpu"), attention=["linear"]).load()[0].checkpoint is None
    assert configure(load_recipe("finetune")).model.name == NAME
    given = []

    def export(source: object, *_: object, **__: object) -> None:
        given.append(source)
        raise InputError("far enough")

    monkeypatch.setattr("sightline.hub.exporting.export", export)
    assert main(["export", str(tmp_path / "model.onnx")]) == 2
    assert given == [None]


def test_the_weights_of_a_model_by_its_name(run: Path, box: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sightline.load(model=NAME).path == box
    asked = []

    def download(name: str) -> Cached:
        asked.append(name)
        return Cached(name, run, "", "", False)

    monkeypatch.setattr(factory, "download", download)
    monkeypatch.setattr(packaged, "FOLDER", run.parent / "none")
    assert sightline.load(model=NAME).path == run
    assert asked == [NAME]
    with pytest.raises(InputError, match="inline_swin_tiny"):
        sightline.load(model="inline_swin_tinny")


def test_without_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packaged, "FOLDER", tmp_path)
    assert packaged.packaged(NAME) is None
    with pytest.raises(InputError, match="checkpoint"):
        sightline.load()


def test_packs_no_other_model(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packaged, "FOLDER", tmp_path)
    model = sightline.create_model(NAME, attention="inline", depths=1)
    path = tmp_path / "other.safetensors"
    write_weights(path, model, card_of(NAME, {"attention": "inline", "depths": 1}, model, (), 3, 224))
    with pytest.raises(InputError, match="attention"):
        pack_box.pack(sightline.load(path))
    assert not list(tmp_path.glob("inline_*"))
