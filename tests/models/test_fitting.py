"""Checkpoints of another size, number of channels or of classes than the model that reads them."""

import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

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
