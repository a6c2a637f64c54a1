"""One small member of each family, built by its published name: a few thousand weights, the same structure.

Windows and stripes are narrow, so that 64 px already have several of them, shifted and padded ones included.
"""

from typing import Any
from unittest.mock import patch

import pytest
import timm
import torch
from torch import Tensor, nn

from sightline.models.base import VisionModel

from .weights import enliven

PYRAMID = {"embed_dims": (8, 16, 24, 32), "num_heads": (1, 2, 3, 4), "depths": (1, 1, 1, 1)}
SWIN = {"embed_dims": 8, "num_heads": (1, 2, 2, 4), "depths": (1, 1, 1, 2), "window_size": 2}
HYBRID = {**PYRAMID, "depths": (0, 1, 1, 1), "conv_depths": (1, 1, 1, 0)}
CSWIN = {"embed_dims": 8, "num_heads": (2, 2, 4, 4), "depths": (1, 1, 1, 1), "stripes": (1, 2, 3, 7)}
TINY: dict[str, tuple[str, dict[str, Any]]] = {
    "deit": ("inline_deit_tiny", {"embed_dims": 16, "num_heads": 2, "depths": 3}),
    "pvt": ("inline_pvt_tiny", PYRAMID),
    "swin": ("inline_swin_tiny", SWIN),
    "cswin": ("inline_cswin_tiny", CSWIN),
    "hybrid": ("inline_conv_small", HYBRID),
    "soft": ("soft_tiny", PYRAMID),
    "soft_norm": ("soft_norm_tiny", PYRAMID),
}
FAMILIES = list(TINY)
WITH_CLASS_TOKEN = ("deit", "soft", "soft_norm")
CLASSES = 5
# Channels of the feature maps, from the first; the last is the width of the features.
CHANNELS = {
    "deit": [16, 16, 16],
    "pvt": [8, 16, 24, 32],
    "swin": [8, 16, 32, 64],
    "cswin": [8, 16, 32, 64],
    "hybrid": [8, 16, 24, 32],
    "soft": [8, 16, 24, 32],
    "soft_norm": [8, 16, 24, 32],
}
every_family = pytest.mark.parametrize("family", FAMILIES)


def tiny(family: str, **arguments: Any) -> nn.Module:
    """The small member of `family`, in evaluation mode, with weights that follow from their names."""
    with patch.object(VisionModel, "init_weights", lambda _: None):  # those are replaced, and take time
        model = fresh(family, **arguments)
    return enliven(model).eval()


def fresh(family: str, **arguments: Any) -> nn.Module:
    """The small member of `family` as it is created."""
    name, given = TINY[family]
    return timm.create_model(name, **{"img_size": 64, "num_classes": CLASSES, **given, **arguments})


def image(height: int = 64, width: int | None = None, batch: int = 2, channels: int = 3) -> Tensor:
    return torch.randn(batch, channels, height, height if width is None else width)


def reductions(family: str) -> list[int]:
    """Pixels along a place of each feature map."""
    return [16] * 3 if family == "deit" else [4, 8, 16, 32]


def last_grid(family: str, height: int, width: int) -> tuple[int, int]:
    """Tokens of the last features, down and across."""
    stride = reductions(family)[-1]
    return -(-height // stride), -(-width // stride)


def assert_close(got: Tensor, want: Tensor, tolerance: float = 1e-5) -> None:
    """Equal up to `tolerance` of the largest entry, and not trivially so."""
    assert want.abs().max() > 1e-3
    torch.testing.assert_close(got, want, rtol=0, atol=tolerance * want.abs().max().item())


def relative_error(got: Tensor, want: Tensor) -> float:
    return ((got - want).norm() / want.norm()).item()


def gradients(model: nn.Module, x: Tensor) -> list[Tensor]:
    """The output, and the gradient of every parameter under a fixed cotangent."""
    out = model(x)
    cotangent = torch.linspace(-1, 1, out.numel()).reshape(out.shape)
    return [out.detach(), *torch.autograd.grad(out, list(model.parameters()), cotangent)]
