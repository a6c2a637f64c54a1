"""A linear student of a trained model is exported like any other model."""

from pathlib import Path

import pytest
import timm

import sightline
from sightline.hub import exporting

pytest.importorskip("onnx", reason="needs the extra `export`")
pytest.importorskip("onnxruntime", reason="needs the extra `export`")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "size", "depth", "keep"),
    [("vit_small_patch14_reg4_dinov2", 28, 2, [0]), ("vit_base_patch16_siglip_224", 32, 1, [])],
)
def test_a_student_is_exported_for_any_size(
    name: str, size: int, depth: int, keep: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "SECONDS", 0.0)
    source = timm.create_model(name, img_size=size, embed_dim=32, depth=depth, num_heads=2, num_classes=4).eval()
    done = sightline.export(sightline.linearize(source, "inline", keep), tmp_path / "student.onnx")
    assert done.inputs == ("batch", 3, "height", "width")
    assert max(check.difference for check in done.checks) <= done.tolerance
