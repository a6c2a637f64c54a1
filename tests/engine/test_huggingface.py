"""Classifiers for Hugging Face, read back by timm, by transformers, and from a server that answers like the hub."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from huggingface_hub import HfApi, constants
from PIL import Image
from torch import Tensor, nn
from transformers import (
    AutoBackbone,
    AutoImageProcessor,
    AutoModel,
    AutoModelForImageClassification,
    TimmBackbone,
    TimmBackboneConfig,
)

import sightline
from sightline.hub import write_tensors
from sightline.tasks.card import ModelCard
from sightline.util.errors import FileError, InputError

from ..http_server import Handler, Server, serving
from ..models.tiny import TINY, tiny

CLASSES = ("cat", "dog", "owl")
ATTENTION = {"deit": "softmax*2+inline", "pvt": "linear", "swin": "inline", "cswin": "softmax", "soft": "soft_norm"}
MEAN, STD = (0.3, 0.4, 0.5), (0.2, 0.25, 0.3)


def trained(family: str, folder: Path) -> Path:
    """A file of weights with its card, of a small model with other arguments than its name has."""
    arguments = {**TINY[family][1], "attention": ATTENTION[family], "img_size": 48, "num_classes": len(CLASSES)}
    name = TINY[family][0]
    model = tiny(family, **arguments)
    card = ModelCard(name, arguments, CLASSES, (3, 48, 48), MEAN, STD, "bilinear", 1.0)
    folder.mkdir(exist_ok=True)
    write_tensors(folder / "model.safetensors", model.state_dict(), card.to_metadata())
    return folder / "model.safetensors"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return sightline.save_for_hf(trained("deit", tmp_path / "run"), tmp_path / "hf")


def picture() -> Image.Image:
    pixels = torch.randint(0, 256, (60, 50, 3), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    return Image.fromarray(pixels.numpy())


def logits(model: nn.Module, x: Tensor) -> Tensor:
    with torch.inference_mode():
        return model.eval()(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("family", list(ATTENTION))
def test_every_reader_gives_the_same_logits(family: str, tmp_path: Path) -> None:
    source = trained(family, tmp_path / "run")
    folder = sightline.save_for_hf(source, tmp_path / "hf")
    loaded = sightline.load(source)
    assert loaded.transform is not None
    x = loaded.transform(picture())[None]
    want = logits(loaded.model, x)
    by_timm = timm.create_model(f"local-dir:{folder}", pretrained=True)
    assert torch.equal(logits(by_timm, x), want)
    assert torch.equal(logits(sightline.create_model(f"local-dir:{folder}", pretrained=True), x), want)
    again = sightline.load(folder)
    assert torch.equal(logits(again.model, x), want)
    assert again.card == loaded.card
    processor = AutoImageProcessor.from_pretrained(folder)
    pixels = processor(picture())["pixel_values"]
    assert torch.equal(pixels, x)
    classifier = AutoModelForImageClassification.from_pretrained(folder).eval()
    with torch.inference_mode():
        assert torch.equal(classifier(pixels).logits, want)
    assert classifier.config.id2label == dict(enumerate(CLASSES))


def test_the_card_travels(saved: Path) -> None:
    config = json.loads((saved / "config.json").read_text())
    assert config["architecture"] == "inline_deit_tiny"
    assert config["model_args"]["attention"] == ATTENTION["deit"]
    assert config["label_names"] == list(CLASSES)
    model = timm.create_model(f"local-dir:{saved}", pretrained=True)
    data = timm.data.resolve_model_data_config(model)
    assert [tuple(data[key]) for key in ("mean", "std", "input_size")] == [MEAN, STD, (3, 48, 48)]
    assert (data["interpolation"], data["crop_pct"]) == ("bilinear", 1.0)
    assert model.pretrained_cfg["label_names"] == list(CLASSES)


@pytest.mark.parametrize("family", ["deit", "pvt", "swin"])
def test_saving_with_timm_keeps_the_arguments(family: str, tmp_path: Path) -> None:
    """Without `model_args`, which timm leaves to its users: nothing is lost, whatever was changed since."""
    model = tiny(family, attention=ATTENTION[family], in_chans=6, num_classes=7)
    model.set_input_size((96, 64))
    model.reset_classifier(4)
    timm.models.save_for_hf(model, str(tmp_path), safe_serialization=True)
    again = timm.create_model(f"local-dir:{tmp_path}", pretrained=True)
    x = torch.randn(1, 6, 96, 64)
    assert torch.equal(logits(again, x), logits(model, x))
    given = timm.create_model(f"local-dir:{tmp_path}", pretrained=True, num_classes=2, img_size=64)
    assert given(torch.randn(1, 6, 64, 64)).shape == (1, 2)


def test_saving_with_timm_twice(tmp_path: Path) -> None:
    """A folder of a folder, with the windows of Swin changed between."""
    model = tiny("swin", attention="softmax", num_classes=3)
    model.set_input_size((96, 64), window_size=4)
    timm.models.save_for_hf(model, str(tmp_path / "one"), safe_serialization=True)
    again = timm.create_model(f"local-dir:{tmp_path / 'one'}", pretrained=True)
    again.set_input_size(64, window_size=2)
    timm.models.save_for_hf(again, str(tmp_path / "two"), safe_serialization=True)
    last = timm.create_model(f"local-dir:{tmp_path / 'two'}", pretrained=True)
    x = torch.randn(1, 3, 64, 64)
    assert torch.equal(logits(last, x), logits(again, x))
    x = torch.randn(1, 3, 96, 64)
    assert not torch.equal(logits(last, x), logits(model, x))


@pytest.mark.parametrize("args", ['{"checkpoint_path": "x"}', '{"act": 1}', '{"kwargs": 1}', "[", '["pruned"]', "3"])
def test_forged_arguments(args: str, saved: Path) -> None:
    config = json.loads((saved / "config.json").read_text())
    config["pretrained_cfg"]["notes"] = [f"sightline arguments: {args}"]
    (saved / "config.json").write_text(json.dumps(config))
    with pytest.raises(FileError):
        timm.create_model(f"local-dir:{saved}", pretrained=True)


def test_transformers_features(saved: Path) -> None:
    x = torch.randn(1, 3, 48, 48)
    model = AutoModel.from_pretrained(saved).eval()
    want = timm.create_model(f"local-dir:{saved}", pretrained=True, num_classes=0).eval()
    with torch.inference_mode():
        assert torch.equal(model(x).pooler_output, want(x))
        assert len(model(x, output_hidden_states=True).hidden_states) == TINY["deit"][1]["depths"]


def test_transformers_training(saved: Path, tmp_path: Path) -> None:
    """A new head, a step, and saving and loading by transformers."""
    model = AutoModelForImageClassification.from_pretrained(saved, num_labels=5, ignore_mismatched_sizes=True)
    x, labels = torch.randn(2, 3, 48, 48), torch.tensor([0, 4])
    loss = model(x, labels=labels).loss
    loss.backward()
    torch.optim.SGD(model.parameters(), 0.1).step()
    model.save_pretrained(tmp_path / "tuned")
    again = AutoModelForImageClassification.from_pretrained(tmp_path / "tuned").eval()
    with torch.inference_mode():
        assert torch.equal(again(x).logits, model.eval()(x).logits)


def test_transformers_backbone(tmp_path: Path) -> None:
    folder = sightline.save_for_hf(trained("pvt", tmp_path / "run"), tmp_path / "hf")
    x = torch.randn(1, 3, 64, 96)
    want = timm.create_model(f"local-dir:{folder}", pretrained=True, features_only=True).eval()
    backbone = TimmBackbone.from_pretrained(f"local-dir:{folder}", out_indices=(0, 1, 2, 3)).eval()
    with torch.inference_mode():
        for found, expected in zip(backbone(x).feature_maps, want(x), strict=True):
            assert torch.equal(found, expected)
    fresh = AutoBackbone.from_config(TimmBackboneConfig(backbone="inline_pvt_tiny", out_indices=[1, 3]))
    assert [found.shape[-1] for found in fresh(x).feature_maps] == [12, 3]


def test_what_is_not_a_classifier(tmp_path: Path) -> None:
    loaded = sightline.load(trained("deit", tmp_path / "run"))
    other = type("SegmentationCard", (), {"classes": ()})()
    object.__setattr__(loaded, "card", other)
    with pytest.raises(InputError, match="source"):
        sightline.save_for_hf(loaded, tmp_path / "hf")
    with pytest.raises(FileError, match="nothing"):
        sightline.save_for_hf(tmp_path / "nothing", tmp_path / "hf")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="folder"):
        sightline.save_for_hf(tmp_path / "run", tmp_path / "file")


def test_push(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: dict[str, Any] = {}

    def upload(_: object, *, repo_id: str, folder_path: str, **options: object) -> str:
        files = {path.name: path.read_bytes() for path in Path(folder_path).iterdir()}
        sent.update(options, repo_id=repo_id, files=files)
        return "done"

    monkeypatch.setattr(HfApi, "create_repo", lambda *_, **__: type("Url", (), {"repo_id": "me/model"}))
    monkeypatch.setattr(HfApi, "file_exists", lambda *_, **__: False)
    monkeypatch.setattr(HfApi, "upload_folder", upload)
    assert sightline.push_to_hf_hub(trained("deit", tmp_path / "run"), "model", licence="mit") == "done"
    assert set(sent["files"]) == {"config.json", "model.safetensors", "README.md"}
    readme = sent["files"]["README.md"].decode()
    assert "license: mit" in readme
    assert '"hf-hub:me/model"' in readme


@pytest.mark.parametrize("name", ["me/model", "not a name"])
def test_push_without_a_network(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trained("deit", tmp_path / "run")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(FileError, match=name):
        sightline.push_to_hf_hub(run, name, token="hf_x")


def _answer(data: bytes) -> Any:
    def send(handler: Handler) -> None:
        handler.send_response(200)
        for key, value in {
            "Content-Length": str(len(data)), "ETag": f'"{len(data)}"', "X-Repo-Commit": "a" * 40,
            "Content-Type": "application/octet-stream", "Accept-Ranges": "bytes",
        }.items():  # fmt: skip
            handler.send_header(key, value)
        handler.end_headers()
        if handler.command == "GET":
            handler.wfile.write(data)

    return send


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    """A server with the addresses of the Hugging Face hub."""
    with serving() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        template = f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        yield server


def test_from_the_hub(hub: Server, saved: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        hub.routes[f"/me/model/resolve/main/{name}"] = _answer((saved / name).read_bytes())
    x = torch.randn(1, 3, 48, 48)
    model = timm.create_model("hf-hub:me/model", pretrained=True, cache_dir=tmp_path / "cache")
    assert torch.equal(logits(model, x), logits(sightline.load(saved).model, x))
    loaded = sightline.load("hf-hub:me/model")
    assert torch.equal(logits(loaded.model, x), logits(model, x))
    with pytest.raises(FileError, match="me/nothing"):
        sightline.load("hf-hub:me/nothing")
