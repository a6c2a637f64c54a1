"""The pyramids as encoders of segmentation_models_pytorch."""

import pytest
import segmentation_models_pytorch as smp
import torch

import sightline  # noqa: F401

CHANNELS = {
    "inline_pvt_tiny": [64, 128, 320, 512],
    "inline_swin_tiny": [96, 192, 384, 768],
    "inline_cswin_tiny": [64, 128, 256, 512],
    "soft_tiny": [64, 128, 320, 512],
    "soft_norm_tiny": [64, 128, 320, 512],
}
SHALLOW = {"depths": (1, 1, 1, 1)}


@pytest.mark.parametrize("name", CHANNELS)
def test_unet(name: str) -> None:
    model = smp.Unet(f"tu-{name}", encoder_weights=None, classes=3, **SHALLOW).eval()
    x = torch.randn(1, 3, 64, 64)
    assert model(x).shape == (1, 3, 64, 64)
    assert model.encoder.out_channels == [3, 0, *CHANNELS[name]]
    features = model.encoder(x)
    assert [f.shape[1] for f in features] == model.encoder.out_channels
    assert [64 // f.shape[-1] for f in features] == [1, 2, 4, 8, 16, 32]
    assert model.encoder.model.feature_info.reduction() == [4, 8, 16, 32]


@pytest.mark.parametrize("architecture", ["FPN", "UPerNet"])
def test_other_decoders_train(architecture: str) -> None:
    model = getattr(smp, architecture)("tu-inline_pvt_tiny", encoder_weights=None, classes=2, **SHALLOW)
    model(torch.randn(2, 3, 64, 96)).square().mean().backward()
    for name, parameter in model.encoder.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


def test_depth_and_channels() -> None:
    options = {"in_channels": 1, "encoder_depth": 4, "decoder_channels": (32, 16, 8, 8)}
    model = smp.Unet("tu-inline_pvt_tiny", encoder_weights=None, **options, **SHALLOW).eval()
    assert model.encoder.out_channels == [1, 0, 64, 128, 320]
    assert len(model.encoder.model.model.stages) == 3
    assert model(torch.randn(1, 1, 32, 64)).shape == (1, 1, 32, 64)
