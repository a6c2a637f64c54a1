"""Weights of one mechanism in a model with another: the rest loads, and what differs is named."""

import warnings
from pathlib import Path

import pytest
import timm
import torch
from torch import Tensor

from sightline.layers import MECHANISMS
from sightline.models.weights.fit import MismatchError
from sightline.tasks.classification.model import load_weights

from .tiny import assert_close, fresh, image, tiny

FAMILIES = ("deit", "pvt", "swin", "cswin", "hybrid", "soft")
THREE_PARTS = [name for name in MECHANISMS if not MECHANISMS[name].core.shared_qk]


def joined(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The static convolutions of CSwin's two branches as that of one, half of the channels each."""
    found = {}
    for key, value in state.items():
        other = key.replace("branches.0.lepe", "branches.1.lepe")
        if "branches.1.lepe" not in key:
            found[key] = torch.cat([value, state[other]]) if other != key and other in state else value
    return found


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", [name for name in THREE_PARTS if name != "softmax"])
@pytest.mark.parametrize("family", FAMILIES)
def test_softmax_weights_in_every_mechanism(family: str, mechanism: str) -> None:
    twin, model = tiny(family, attention="softmax"), fresh(family, attention=mechanism)
    given, initial = joined(twin.state_dict()), {key: value.clone() for key, value in model.state_dict().items()}
    own = [key for key in initial if key not in given]
    left = [key for key in given if key not in initial]
    if own or left:
        with pytest.warns(UserWarning, match="another attention mechanism") as caught:
            model.load_state_dict(twin.state_dict())
        message = str(caught[0].message)
        assert all(key in message for key in (*own[:2], *left[:2]))
        assert "\n" not in message
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model.load_state_dict(twin.state_dict())
    for key, value in model.state_dict().items():
        assert torch.equal(value, given[key] if key in given else initial[key]), key
    assert all(".attn." in key for key in (*own, *left))
    assert model(image(61, 96)).isfinite().all()


def test_and_back() -> None:
    performer, model = tiny("swin", attention="performer"), fresh("swin", attention="softmax")
    with pytest.warns(UserWarning, match=r"5 of its tensors .*position_bias.*left out .*core\.projection") as caught:
        model.load_state_dict(performer.state_dict())
    assert len(caught) == 1


def test_stripes_and_the_whole_map() -> None:
    """Both ways, and the convolutions stay those of their channels."""
    stripes, whole = (tiny("cswin", attention="softmax"), fresh("cswin", attention="linear"))
    whole.load_state_dict(stripes.state_dict())
    back = fresh("cswin", attention="softmax").eval()
    back.load_state_dict(whole.state_dict())
    x = image(61, 96)
    assert torch.equal(back(x), stripes(x))


def test_a_file_for_timm_for_features_and_for_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    twin = tiny("deit", attention="softmax")
    path = tmp_path / "twin.pth"
    torch.save({"model": twin.state_dict()}, path)
    with pytest.warns(UserWarning, match="blocks.0.attn.core.projection"):
        model = fresh("deit", attention="performer", checkpoint_path=str(path))
    assert torch.equal(model.blocks[1].attn.qkv.weight, twin.blocks[1].attn.qkv.weight)
    with pytest.warns(UserWarning, match="another attention mechanism"):
        fresh("deit", attention="linformer", features_only=True, checkpoint_path=str(path))
    load_weights(fresh("deit", attention="focused"), str(path))
    assert "keep their initial values (blocks.0.attn.core.neighbours.conv.weight" in capsys.readouterr().out


def test_a_part_of_a_mechanism_is_rejected() -> None:
    state = tiny("deit", attention="linformer").state_dict()
    del state["blocks.1.attn.core.value_table"]
    with pytest.raises(MismatchError, match=r"1 missing: blocks\.1\.attn\.core\.value_table"):
        fresh("deit", attention="linformer").load_state_dict(state)


def test_nothing_else_may_differ() -> None:
    state = tiny("deit", attention="softmax").state_dict()
    del state["blocks.1.norm1.weight"]
    with pytest.raises(MismatchError, match=r"missing: .*blocks\.1\.norm1\.weight"):
        fresh("deit", attention="performer").load_state_dict(state)
    with pytest.raises(MismatchError, match=r"of the wrong shape: .*qkv"):  # SOFT has no projection of keys
        fresh("deit", attention="soft").load_state_dict(tiny("deit", attention="softmax").state_dict())
    found = fresh("deit", attention="performer").load_state_dict(
        tiny("deit", attention="softmax").state_dict(), strict=False
    )
    assert found.missing_keys == [f"blocks.{i}.attn.core.projection" for i in range(3)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ours", "theirs", "arguments"),
    [
        ("inline_deit_tiny", "deit_tiny_patch16_224", {"num_heads": 3, "depths": 2}),
        ("inline_swin_tiny", "swin_tiny_patch4_window7_224", {"depths": (2, 1, 1, 1)}),
    ],
)
def test_models_of_timm(ours: str, theirs: str, arguments: dict) -> None:
    """The softmax twin is their model; another mechanism takes what is left of it."""
    depths = arguments["depths"]
    source = timm.create_model(theirs, **({"depth": depths} if isinstance(depths, int) else {"depths": depths})).eval()
    twin = timm.create_model(ours, attention="softmax", **arguments).eval()
    twin.load_state_dict(source.state_dict())
    x = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        assert_close(twin(x), source(x))
    other = timm.create_model(ours, attention="nystromformer", **arguments).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other.load_state_dict(source.state_dict())
    qkv = [key for key in twin.state_dict() if key.endswith("attn.qkv.weight")]
    assert len(qkv) == (depths if isinstance(depths, int) else sum(depths))
    assert all(torch.equal(other.state_dict()[key], twin.state_dict()[key]) for key in qkv)
