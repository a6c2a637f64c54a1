"""Images that trainings of several processes share."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import decoded

from sightline.tasks.classification import loaders


def test_images_are_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def decode(*_: Any) -> loaders.Kept:
        calls.append(1)
        images = torch.full((2, 3, 4, 4), len(calls), dtype=torch.uint8)
        return loaders.Kept(images, torch.arange(2), torch.ones(2, 2))

    monkeypatch.setattr(decoded, "decode", decode)
    monkeypatch.setattr(loaders, "preload", loaders.preload)  # puts it back afterwards
    decoded.share_decoded(tmp_path / "cache")
    split: Any = type("Split", (), {"title": "photos", "__len__": lambda _: 2})()
    placement: Any = SimpleNamespace(device=torch.device("cpu"))
    card: Any = SimpleNamespace(input_size=(3, 4, 4), crop_pct=1.0, interpolation="bicubic")
    broken: Any = None
    first, again = (loaders.preload(split, card, False, 0, placement, broken) for _ in range(2))
    assert len(calls) == 1
    assert torch.equal(first.images, again.images)
    assert torch.equal(first.targets, torch.arange(2))
    assert loaders.preload(split, card, True, 0, placement, broken).images[0, 0, 0, 0] == 2
    card.input_size = (3, 8, 8)
    assert loaders.preload(split, card, False, 0, placement, broken).images[0, 0, 0, 0] == 3
