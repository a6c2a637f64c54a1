"""The models to explore: what they are called, and which weights they have."""

from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file

from sightline.explorer.models import Models
from sightline.explorer.pictures import UnknownError
from sightline.util.errors import FileError, InputError

from ..cli.classifiers import classifier
from .small import ARGS


def test_random_weights_say_so() -> None:
    models = Models((), (), None, ARGS)
    assert models.first.title == "inline_deit_tiny (random weights)"
    assert "RANDOM" in str(models.find("m0", None).warning)


def test_a_model_by_its_name() -> None:
    assert Models((), (), "inline_vit_tiny").first.checkpoint is not None
    with pytest.raises(InputError, match=r"checkpoint: vit_tiny_patch16_224 .* timm"):
        Models((), (), "vit_tiny_patch16_224")
    with pytest.raises(InputError, match="no model"):
        Models((), (), "nonsense")


def test_twins_share_weights() -> None:
    models = Models((), ("linear(phi=elu1)",), None, ARGS)
    base = models.find("m0", None).model.state_dict()
    for attention in ("softmax", "linear(phi=elu1)"):
        twin = models.find("m0", attention).model.state_dict()
        assert all(torch.equal(base[key], value) for key, value in twin.items())
    assert models.find("m0", "softmax") is models.find("m0", "softmax")


def test_files_are_called_by_their_name(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        classifier(tmp_path / folder / "model.safetensors")
    classifier(tmp_path / "other.safetensors")
    paths = [str(tmp_path / name) for name in ("a/model.safetensors", "b/model.safetensors", "other.safetensors")]
    assert [item.title for item in Models(paths).bases.values()] == ["1: model", "2: model", "3: other"]
    assert Models(paths[2:]).first.title == "other"


def test_a_vision_transformer_of_timm(tmp_path: Path) -> None:
    torch.manual_seed(0)
    args = {"depth": 2, "embed_dim": 192}
    source = timm.create_model("vit_tiny_patch16_224", num_classes=1000, **args).eval()
    file = tmp_path / "teacher.safetensors"
    save_file(source.state_dict(), file)
    models = Models([str(file)], ("softmax", "inline"), "vit_tiny_patch16_224", args)
    image = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        for attention in (None, "softmax"):
            assert torch.allclose(models.find("m0", attention).model(image), source(image), atol=1e-4)
    assert models.find("m0", "softmax").warning is None
    assert "another mechanism" in str(models.find("m0", "inline").warning)
    assert len(models.first.card.classes) == 1000
    assert models.first.card.mean == (0.5, 0.5, 0.5)
    classifier(tmp_path / "own.safetensors")
    both = Models([str(file), str(tmp_path / "own.safetensors")], (), "vit_tiny_patch16_224", args)
    assert [item.title for item in both.bases.values()] == ["teacher", "own"]
    with pytest.raises(InputError, match="vit_tiny_patch16"):
        Models([str(file)], (), "vit_tiny_patch16", args)
    with pytest.raises(FileError, match="vit_small_patch16_224"):
        Models([str(file)], (), "vit_small_patch16_224", {"depth": 2})


def test_unknown() -> None:
    models = Models((), (), None, ARGS)
    with pytest.raises(UnknownError):
        models.find("m1", None)
    with pytest.raises(InputError, match=r"attention: .*'inlin'"):
        models.find("m0", "inlin")
    with pytest.raises(InputError, match="channels"):
        Models((), (), None, {**ARGS, "in_chans": 4})
