"""Weights of another number of heads have the same shapes: they must not load without a word."""

import json
import shutil
import warnings
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import sightline
from sightline.models.weights.heads import check_recorded, recorded_heads
from sightline.models.weights.reader import read_weights
from sightline.models.zoo import create
from sightline.util.errors import FileError, WeightsWarning
from tests.cli.checkpoints import public, save, small

VIT = "vit_tiny_patch16_224"
SHARED = Path(__file__).parents[3] / "shared" / "weights" / "vit_tiny_augreg_in1k.safetensors"


def softmax(heads: int, **kwargs: object) -> nn.Module:
    return small("deit", attention="softmax", embed_dims=64, num_heads=heads, **kwargs)


def image() -> Tensor:
    return torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))


def write(state: dict[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> Path:
    save_file({key: value.contiguous() for key, value in state.items()}, path, metadata)
    return path


def test_unknown_heads_of_published_weights_warn() -> None:
    with pytest.warns(WeightsWarning, match=r"heads.* 4"):
        softmax(4).load_state_dict(public(softmax(2)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        softmax(2).load_state_dict(softmax(2).state_dict())  # a model's own layout
        small("deit").load_state_dict(public(small("deit")))  # InLine shows its heads
        small("swin").load_state_dict(public(small("swin")))


def test_shown_heads_of_another_mechanism_are_compared() -> None:
    inline = small("deit", embed_dims=64, num_heads=2)
    with pytest.raises(FileError, match=r"blocks\.0 has 2 heads .* 4 in the model.*num_heads"):
        softmax(4).load_state_dict(inline.state_dict())
    with pytest.warns(UserWarning, match="another attention mechanism"):
        softmax(2).load_state_dict(inline.state_dict())


@pytest.mark.parametrize(
    ("config", "heads"),
    [
        ({"num_attention_heads": 4, "model_type": "vit"}, (4,)),  # Hugging Face
        ({"architecture": VIT}, (3,)),  # timm
        ({"architecture": f"{VIT}.augreg_in21k", "model_args": {"num_heads": 2}}, (2,)),
        ({"num_attention_heads": [1, 2, 5, 8]}, (1, 2, 5, 8)),
        ({"architecture": "swin_tiny_patch4_window7_224"}, None),  # its shapes show them
        ({"architecture": "no_such_model", "num_heads": True}, None),
        ({"num_heads": "x", "num_attention_heads": 0}, None),
    ],
)
def test_config_next_to_the_weights(config: dict[str, object], heads: tuple[int, ...] | None, tmp_path: Path) -> None:
    path = write(public(softmax(4)), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = recorded_heads(read_weights(path))
    assert (found and found.counts) == heads


def test_damaged_config_is_ignored(tmp_path: Path) -> None:
    path = write(public(softmax(4)), tmp_path / "model.safetensors")
    for content in (b"", b"[1]", b"\xff\xfe", b"{" * 10_000):
        (tmp_path / "config.json").write_bytes(content)
        assert recorded_heads(read_weights(path)) is None


@pytest.mark.parametrize(("heads", "metadata"), [(4, {"num_heads": "4"}), (2, {"num_attention_heads": "[2]"})])
def test_recorded_heads_are_used(heads: int, metadata: dict[str, str], tmp_path: Path) -> None:
    model = softmax(heads)
    path = write(public(model), tmp_path / "model.safetensors", metadata)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = sightline.load(path)
    torch.testing.assert_close(loaded.model(image()), model(image()))
    with pytest.raises(FileError, match=f"num_heads=8.*{heads}"):
        sightline.load(path, model_args={"num_heads": 8})


def test_architecture_in_a_training_checkpoint(tmp_path: Path) -> None:
    path = save({"arch": VIT, "state_dict": public(softmax(4))}, tmp_path / "last.pth.tar")
    found = recorded_heads(read_weights(path))
    assert found is not None
    assert (found.counts, VIT in found.source) == ((3,), True)


def test_guess_of_a_published_vit_is_named(tmp_path: Path) -> None:
    path = save(public(softmax(1)), tmp_path / "vit.pth")  # 64 channels per head, as every published ViT
    with pytest.warns(WeightsWarning, match=r"vit\.pth.* 1\..*num_heads"):
        loaded = sightline.load(path)
    torch.testing.assert_close(loaded.model(image()), softmax_with(loaded.model, 1)(image()))


def softmax_with(model: nn.Module, heads: int) -> nn.Module:
    twin = softmax(heads)
    twin.load_state_dict(model.state_dict())
    return twin


def test_starting_weights_that_record_other_heads(tmp_path: Path) -> None:
    path = write(softmax(2).state_dict(), tmp_path / "model.safetensors", {"num_heads": "2"})
    check_recorded(read_weights(path), softmax(2))
    with pytest.raises(FileError, match=r"model\.safetensors.* 2 heads.* 4; .*num_heads=2"):
        check_recorded(read_weights(path), softmax(4))


@pytest.mark.skipif(not SHARED.exists(), reason="the weights of ViT-Tiny are not here")
def test_a_real_vit(tmp_path: Path) -> None:
    x = torch.randn(1, 3, 224, 224)
    teacher = timm.create_model(VIT, checkpoint_path=str(SHARED)).eval()
    wrong = create("inline_deit_tiny", attention="softmax")
    with pytest.warns(WeightsWarning, match="heads"):
        wrong.load_state_dict(read_weights(SHARED).state)
    shutil.copy(SHARED, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"architecture": VIT}))
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("error")
        loaded = sightline.load(tmp_path / "model.safetensors")
        torch.testing.assert_close(loaded.model(x), teacher(x), rtol=1e-3, atol=1e-3)
        assert (wrong.eval()(x) - teacher(x)).norm() > 0.1 * teacher(x).norm()
    with pytest.raises(FileError, match="num_heads=6"):
        sightline.load(tmp_path / "model.safetensors", model_args={"num_heads": 6})
