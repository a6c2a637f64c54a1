"""`import sightline`: the public names, and models registered with timm."""

import doctest
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import timm

import sightline
from sightline.models.zoo import VARIANTS
from sightline.util.errors import InputError

SOURCE = Path(sightline.__file__).parents[1]
NAMES = [
    "Attention", "__version__", "attention_maps", "benchmark", "capture", "certify",
    "convert", "count_confusions", "create_model", "download", "evaluate", "explore", "export", "layers",
    "linearize", "list_models", "load", "masked", "measure_locality", "measure_newton", "measure_peak", "measure_rank",
    "models", "ops", "predict", "push_to_hf_hub", "roll_up", "save_for_hf", "train",
]  # fmt: skip


def test_public_names() -> None:
    assert dir(sightline) == NAMES
    for name in NAMES:
        assert getattr(sightline, name) is not None
    stub = Path(sightline.__file__).with_suffix(".pyi").read_text()
    assert set(re.findall(r" as (\w+)|^(__version__)", stub, re.MULTILINE)) == {
        ("", name) if name == "__version__" else (name, "") for name in NAMES
    }
    with pytest.raises(AttributeError, match="'nothing'"):
        sightline.nothing  # noqa: B018


@pytest.mark.slow
def test_registration_can_be_left_out() -> None:
    code = "import sys, sightline; print('torch' in sys.modules, sightline.list_models('soft_tiny'))"
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "SIGHTLINE_REGISTER": "0"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout == "False ['soft_tiny']\n", done.stderr


@pytest.mark.parametrize("door", [sightline.create_model, sightline.list_models])
def test_examples(door: Callable[..., object]) -> None:
    (example,) = doctest.DocTestFinder(recurse=False).find(door)
    assert example.examples
    assert doctest.DocTestRunner().run(example).failed == 0


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
