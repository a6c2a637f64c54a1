"""Backbones without a head, and the checkpoints they read."""

from pathlib import Path

import pytest
import timm
import torch

from . import weights
from .tiny import CHANNELS, every_family, fresh, image, reductions, tiny


@every_family
def test_features_only(family: str) -> None:
    model, x = tiny(family, features_only=True), image(96, 64)
    maps = model(x)
    assert model.feature_info.channels() == CHANNELS[family] == [m.shape[1] for m in maps]
    assert model.feature_info.reduction() == reductions(family)
    assert [tuple(m.shape[2:]) for m in maps] == [(96 // r, 64 // r) for r in reductions(family)]
    assert len(maps) >= 3
    assert not any("head" in name or name.startswith("model.norm") for name in model.state_dict())


@every_family
@pytest.mark.parametrize("indices", [(0, 1), (1,), (-2, -1), 2])
def test_features_only_out_indices(family: str, indices: int | tuple[int, ...]) -> None:
    model = fresh(family, features_only=True, out_indices=indices).eval()
    total = len(CHANNELS[family])
    chosen = range(total - indices, total) if isinstance(indices, int) else indices
    assert model.feature_info.channels() == [CHANNELS[family][i] for i in chosen]
    assert [m.shape[1] for m in model(image())] == model.feature_info.channels()


@every_family
@pytest.mark.parametrize("indices", [None, (0, 1)])
def test_features_only_reads_the_checkpoint_of_a_whole_model(
    family: str, indices: tuple[int, ...] | None, tmp_path: Path
) -> None:
    whole, x = tiny(family), image()
    torch.save({"model": whole.state_dict()}, tmp_path / "whole.pth")
    part = fresh(family, features_only=True, out_indices=indices, checkpoint_path=str(tmp_path / "whole.pth"))
    expected = whole.forward_intermediates(x, list(indices) if indices else None, intermediates_only=True)
    for got, want in zip(part.eval()(x), expected, strict=True):
        assert torch.equal(got, want)


@every_family
def test_features_only_reads_its_own_checkpoint(family: str, tmp_path: Path) -> None:
    first, x = tiny(family, features_only=True), image()
    torch.save({"model": first.state_dict()}, tmp_path / "part.pth")
    second = fresh(family, features_only=True, checkpoint_path=str(tmp_path / "part.pth")).eval()
    for got, want in zip(second(x), first(x), strict=True):
        assert torch.equal(got, want)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["inline_deit_tiny", "soft_tiny"])
def test_features_only_reads_a_public_checkpoint(name: str, tmp_path: Path) -> None:
    path = str(tmp_path / "public.pth")
    torch.save({"model": weights.Golden.read(name).state}, path)
    whole = timm.create_model(name, checkpoint_path=path).eval()
    part = timm.create_model(name, checkpoint_path=path, features_only=True, out_indices=(0, 2)).eval()
    x = image(64, 96, batch=1)
    expected = whole.forward_intermediates(x, [0, 2], intermediates_only=True)
    for got, want in zip(part(x), expected, strict=True):
        assert torch.equal(got, want)
