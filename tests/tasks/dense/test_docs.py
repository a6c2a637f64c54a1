"""The Python in docs/dense.md runs as it is written."""

import re
import runpy
from pathlib import Path
from typing import Any

import torch

DOCS = Path(__file__).parents[3] / "docs" / "dense.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", DOCS.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def run(block: str, folder: Path) -> dict[str, Any]:
    """The names that a block of the page leaves behind."""
    path = folder / "block.py"
    path.write_text(block, encoding="utf-8")
    torch.manual_seed(0)
    return runpy.run_path(str(path))


def test_there_are_two() -> None:
    assert len(BLOCKS) == 2


def test_a_detector_of_torchvision(tmp_path: Path) -> None:
    names = run(BLOCKS[0], tmp_path)
    assert {"loss_classifier", "loss_box_reg", "loss_objectness", "loss_rpn_box_reg"} == names["losses"].keys()
    missing = [name for name, p in names["detector"].backbone.named_parameters() if p.grad is None]
    assert missing == []
    assert [set(item) for item in names["found"]] == [{"boxes", "labels", "scores"}] * 2
    maps = names["detector"].backbone(torch.randn(1, 3, 64, 96))
    assert [tuple(x.shape) for x in maps.values()] == [(1, 64, 64 // s, 96 // s) for s in (4, 8, 16, 32)]


def test_a_decoder_of_segmentation_models_pytorch(tmp_path: Path) -> None:
    names = run(BLOCKS[1], tmp_path)
    assert names["logits"].shape == (2, 19, 96, 160)
    missing = [name for name, p in names["segmenter"].encoder.named_parameters() if p.grad is None]
    assert missing == []
