"""Checkpoints of another size, number of channels or of classes than the model that reads them."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sightline.models.weights.fit import MismatchError

from .tiny import CLASSES, assert_close, every_family, fresh, image, tiny


def save(model: nn.Module, folder: Path) -> str:
    torch.save({"model": model.state_dict()}, folder / "state.pth")
    return str(folder / "state.pth")


@every_family
def test_checkpoint_of_another_size(family: str, tmp_path: Path) -> None:
    source, x = tiny(family), image(40, 72)
    target = fresh(family, img_size=(40, 72), checkpoint_path=save(source, tmp_path)).eval()
    assert_close(target(x), source(x))


def test_checkpoint_of_another_window(tmp_path: Path) -> None:
    source, x = tiny("swin", window_size=4), image(160)
    target = fresh("swin", window_size=3, checkpoint_path=save(source, tmp_path)).eval()
    source.set_input_size(window_size=3)
    assert_close(target(x), source(x))


@every_family
def test_colour_checkpoint_in_a_grey_model(family: str, tmp_path: Path) -> None:
    source, grey = tiny(family), image(channels=1)
    target = fresh(family, in_chans=1, checkpoint_path=save(source, tmp_path)).eval()
    assert_close(target(grey), source(grey.expand(-1, 3, -1, -1)))


@every_family
def test_colour_checkpoint_with_more_channels(family: str, tmp_path: Path) -> None:
    source = tiny(family)
    target = fresh(family, in_chans=6, checkpoint_path=save(source, tmp_path)).eval()
    x = image()
    assert_close(target(x.repeat(1, 2, 1, 1)), source(x))


@every_family
def test_checkpoint_of_other_classes(family: str, tmp_path: Path) -> None:
    source, x = tiny(family), image()
    path = save(source, tmp_path)
    with pytest.warns(UserWarning, match=f"{CLASSES} classes and the model 3"):
        target = fresh(family, num_classes=3, checkpoint_path=path).eval()
    assert torch.equal(target.forward_features(x), source.forward_features(x))
    assert target(x).shape == (2, 3)
    assert (target.head.bias == 0).all(), "the head is not a fresh one"
    assert 0 < target.head.weight.std() < 0.03
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bare = fresh(family, num_classes=0, checkpoint_path=path).eval()
    assert torch.equal(bare(x), source.forward_head(source.forward_features(x), pre_logits=True))


@every_family
@pytest.mark.parametrize("wrap", [lambda s: {"model": s}, lambda s: {f"module.{k}": v for k, v in s.items()}])
def test_load_state_dict_unwraps(family: str, wrap: Callable[[dict[str, Tensor]], dict[str, Any]]) -> None:
    trained, model, x = tiny(family).eval(), fresh(family).eval(), image()
    model.load_state_dict(wrap(trained.state_dict()))
    assert_close(model(x), trained(x))


def test_averaged_weights_with_their_count(tmp_path: Path) -> None:
    trained = tiny("pvt")
    state = {"n_averaged": torch.tensor(7), **{f"module.{k}": v for k, v in trained.state_dict().items()}}
    torch.save({"model_ema": state, "epoch": 3}, tmp_path / "ema.pth")
    model, x = fresh("pvt", checkpoint_path=str(tmp_path / "ema.pth")), image()
    assert_close(model(x), trained(x))


@every_family
def test_a_checkpoint_that_does_not_fit_is_one_line(family: str) -> None:
    state = tiny(family).state_dict()
    first, *_ = (key for key in state if key.endswith("norm1.bias"))
    state["extra.weight"] = state.pop(first)
    state["head.bias"] = torch.zeros(3)
    with pytest.raises(MismatchError) as caught:
        fresh(family).load_state_dict(state)
    message = str(caught.value)
    assert "\n" not in message
    assert f"1 missing: {first}" in message
    assert "1 unexpected: extra.weight" in message
    assert "1 of the wrong shape: head.bias is (3,)" in message
    del state["head.bias"]
    result = fresh(family).load_state_dict(state, strict=False)
    assert first in result.missing_keys
    assert "extra.weight" in result.unexpected_keys


def test_features_name_what_does_not_fit() -> None:
    state = tiny("swin").state_dict()
    state["extra.weight"] = torch.zeros(1)
    with pytest.raises(MismatchError, match=r"1 unexpected: .*extra\.weight"):
        fresh("swin", features_only=True).load_state_dict(state)


@pytest.mark.parametrize("prefix", ["module._orig_mod.", "_orig_mod.module.", "model.module."])
def test_prefixes_in_any_order(prefix: str) -> None:
    trained, model, x = tiny("pvt").eval(), fresh("pvt").eval(), image()
    model.load_state_dict({f"{prefix}{key}": value for key, value in trained.state_dict().items()})
    assert_close(model(x), trained(x))
