"""Cards survive the metadata of a file, and what comes from a file is checked."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from sightline.tasks.card import CardError, ModelCard
from sightline.tasks.preprocess import at_size, make_transform

CARD = ModelCard(
    name="inline_deit_tiny",
    arguments={"depths": 2, "attention": "inline,softmax", "embed_dims": [64]},
    classes=("Ankle boot", "Bücher", 'a "b"'),
    input_size=(1, 28, 36),
    mean=(0.5,),
    std=(0.25,),
    interpolation="bilinear",
    crop_pct=1.0,
)


def test_through_a_file(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"x": torch.zeros(1)}, path, CARD.to_metadata())
    with safe_open(path, "pt") as file:
        assert ModelCard.from_metadata(file.metadata()) == CARD


def test_files_without_a_card() -> None:
    assert ModelCard.from_metadata({}) is None
    assert ModelCard.from_metadata({"model": "inline_deit_tiny", "model_args": "{}"}) is None  # sightline convert


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("classes", "[1, 2]", "classes"),
        ("classes", '"abc"', "classes"),
        ("classes", json.dumps(["x" * 10**7]), "classes"),
        ("model_args", "[]", "model_args"),
        ("input", "{", "input"),
        ("input", "[" * 100_000, "input"),
        ("input.input_size", [3, 224], "input_size"),
        ("input.input_size", [3, 0, 224], "input_size"),
        ("input.input_size", [3, 1e9, 224], "input_size"),
        ("input.mean", [0.5, 0.5], "mean"),
        ("input.mean", ["a"], "mean"),
        ("input.mean", [0.5, 0.5, 1e39], "mean.2"),
        ("input.std", [0.5, 0.5, 1e-30], "std.2"),
        ("input.std", [0.0], "std"),
        ("input.std", [float("nan")], "std"),
        ("input.interpolation", "magic", "interpolation"),
        ("input.crop_pct", 0, "crop_pct"),
        ("input.crop_pct", None, "crop_pct"),
    ],
)
def test_damaged_metadata_is_named(key: str, value: object, complaint: str) -> None:
    metadata = CARD.to_metadata()
    entry, _, name = key.partition(".")
    metadata[entry] = json.dumps({**json.loads(metadata[entry]), name: value}) if name else str(value)
    with pytest.raises(CardError, match=complaint) as caught:
        ModelCard.from_metadata(metadata)
    assert len(str(caught.value).splitlines()) == 1


def test_transform_follows_the_card() -> None:
    from PIL import Image

    image = make_transform(CARD)(Image.new("L", (50, 40), 255))
    assert tuple(image.shape) == (1, 28, 36)
    torch.testing.assert_close(image, torch.full_like(image, (1 - 0.5) / 0.25))
    assert tuple(make_transform(at_size(CARD, 16))(Image.new("L", (50, 40))).shape) == (1, 16, 16)
    assert at_size(CARD, (8, 4)).input_size == (1, 8, 4)
