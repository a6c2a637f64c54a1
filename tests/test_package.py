"""`import sightline`: the public names, and models registered with timm whatever the process is called."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import timm

import sightline
from sightline.models.zoo import VARIANTS
from sightline.util.errors import InputError

SOURCE = Path(sightline.__file__).parents[1]
NAMES = [
    "Attention", "__version__", "attention_maps", "benchmark", "convert", "create_model", "evaluate", "layers",
    "list_models", "load", "models", "ops", "predict", "train",
]  # fmt: skip


def python(code: str, **environment: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), **environment}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_public_names() -> None:
    assert dir(sightline) == NAMES
    for name in ("create_model", "list_models", "load", "convert", "ops", "layers", "models", "Attention"):
        assert getattr(sightline, name) is not None
    with pytest.raises(AttributeError, match="'nothing'"):
        sightline.nothing  # noqa: B018


def test_models_are_registered_whatever_the_script_is_called() -> None:
    code = "import sys; sys.argv = ['/usr/bin/sightline']; import sightline, timm; print(timm.is_model('soft_tiny'))"
    assert python(code) == "True"


def test_registration_can_be_left_out() -> None:
    code = "import sys, sightline; print('torch' in sys.modules, sightline.list_models('soft_tiny'))"
    assert python(code, SIGHTLINE_REGISTER="0") == "False ['soft_tiny']"


def test_list_models() -> None:
    assert sightline.list_models() == list(VARIANTS)
    assert sightline.list_models("*deit*") == ["inline_deit_tiny", "inline_deit_small", "inline_deit_base"]
    assert sightline.list_models("nothing") == []
    assert set(VARIANTS) <= set(timm.list_models())


def test_create_model() -> None:
    model = sightline.create_model("inline_deit_tiny", depths=1, num_classes=3, device="meta")
    assert (model.num_classes, len(model.blocks)) == (3, 1)  # type: ignore[arg-type]
    assert len(sightline.create_model("soft_tiny", features_only=True, device="meta").feature_info) == 4
    assert type(sightline.create_model("test_vit")).__module__.startswith("timm.")


@pytest.mark.parametrize(
    ("name", "kwargs", "value", "near"),
    [
        ("inline_swn_tiny", {}, "inline_swn_tiny", "inline_swin_tiny"),
        ("resnet5", {}, "resnet5", "resnet"),
        ("inline_deit_tiny", {"depth": 3}, "depth", "depths"),
        ("inline_deit_tiny", {"global_pool": "mean"}, "mean", "avg"),
    ],
)
def test_create_model_names_what_is_wrong(name: str, kwargs: dict[str, object], value: str, near: str) -> None:
    with pytest.raises(InputError) as caught:
        sightline.create_model(name, **kwargs)
    assert value in str(caught.value)
    assert near in str(caught.value)
    assert "\n" not in str(caught.value)
