"""The pyramids as encoders of segmentation_models_pytorch."""

import pytest
import segmentation_models_pytorch as smp
import timm
import torch

import sightline  # noqa: F401

CHANNELS = {
    "inline_pvt_tiny": [64, 128, 320, 512],
    "inline_swin_tiny": [96, 192, 384, 768],
    "inline_cswin_tiny": [64, 128, 256, 512],
    "soft_tiny": [64, 128, 320, 512],
}
SHALLOW = {"depths": (1, 1, 1, 1)}


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("readout", ["cat", "add", "ignore"])
def test_dpt_reads_the_class_token_of_the_last_stage(readout: str) -> None:
    model = smp.DPT("tu-soft_tiny", encoder_weights=None, classes=2, decoder_readout=readout, **SHALLOW).eval()
    x = torch.randn(2, 3, 64, 96)
    out = model(x)
    assert out.shape == (2, 2, 64, 96)
    assert out.isfinite().all()
    maps, tokens = model.encoder(x)
    assert [token.shape for token in tokens] == [(2, 1, each.shape[1]) for each in maps]
    assert [bool(token.any()) for token in tokens] == [False, False, False, True]


def test_dpt_on_the_other_pyramids() -> None:
    model = smp.DPT("tu-inline_pvt_tiny", encoder_weights=None, classes=2, decoder_readout="ignore", **SHALLOW).eval()
    assert model(torch.randn(1, 3, 64, 96)).shape == (1, 2, 64, 96)


def test_prefix_tokens_are_those_of_the_last_stage() -> None:
    model = timm.create_model("soft_tiny", **SHALLOW).eval()
    x = torch.randn(1, 3, 64, 64)
    pairs = model.forward_intermediates(x, norm=True, intermediates_only=True, return_prefix_tokens=True)
    maps = model.forward_intermediates(x, norm=True, intermediates_only=True)
    assert all(pair[0].equal(each) for pair, each in zip(pairs, maps, strict=True))
    assert pairs[-1][1].equal(model.forward_features(x)[:, :1])
    swin = timm.create_model("inline_swin_tiny", **SHALLOW).eval()
    taken = swin.forward_intermediates(x, intermediates_only=True, return_prefix_tokens=True)
    assert [token.shape[1] for _, token in taken] == [0, 0, 0, 0]
