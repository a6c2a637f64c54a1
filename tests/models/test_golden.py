"""The models read the published weights and give the published logits."""

from collections.abc import Callable
from pathlib import Path

import pytest
import timm
import torch
from torch import Tensor

import sightline  # noqa: F401

from . import weights

# Golden files that are not a registered name: the model they belong to, and its arguments.
MODELS = {
    "pvt_tiny_softmax": ("inline_pvt_tiny", {"attention": "softmax"}),
    "swin_tiny_softmax_w7": ("inline_swin_tiny", {"attention": "softmax"}),
}
PROMISED = 1e-3  # of every model
EXACT = 1e-5  # where the public step size does not depend on the rest of the batch
STEP_OF_THE_BATCH = {"soft_norm_tiny"}

State = dict[str, Tensor]
LAYOUTS: dict[str, Callable[[State], dict]] = {
    "model": lambda state: {"model": state, "epoch": 299},
    "module": lambda state: {"model": {f"module.{k}": v for k, v in state.items()}},
    "ema": lambda state: {"model": {k: v + 1 for k, v in state.items()}, "state_dict_ema": state},
}


# The layout of a file is taken apart before its family is known: one model is enough for the wrapped ones.
CASES = [(name, "model") for name in weights.names()]
CASES += [("inline_deit_tiny", layout) for layout in ("module", "ema")]


@pytest.fixture
def _uninitialized(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the random weights of new models, which take longer than all the rest."""
    for function in ("timm.layers.weight_init._trunc_normal_", "torch.nn.init.kaiming_uniform_"):
        monkeypatch.setattr(function, lambda tensor, *_, **__: tensor)


@pytest.mark.slow
@pytest.mark.usefixtures("_uninitialized")
@pytest.mark.parametrize(("name", "layout"), CASES)
def test_public_checkpoint_gives_public_logits(name: str, layout: str, tmp_path: Path) -> None:
    golden = weights.Golden.read(name)
    path = tmp_path / "public.pth"
    torch.save(LAYOUTS[layout](golden.state), path)
    model_name, arguments = MODELS.get(name, (name, {}))
    model = timm.create_model(model_name, checkpoint_path=str(path), **arguments).eval()
    with torch.inference_mode():
        error = (model(golden.images) - golden.logits).norm() / golden.logits.norm()
    assert error < (PROMISED if name in STEP_OF_THE_BATCH else EXACT)


def test_every_golden_file_is_here() -> None:
    assert set(weights.names()) == {
        "inline_cswin_tiny", "inline_deit_tiny", "inline_pvt_tiny", "inline_swin_tiny", "pvt_tiny_softmax",
        "soft_norm_tiny", "soft_tiny", "swin_tiny_softmax_w7",
    }  # fmt: skip
