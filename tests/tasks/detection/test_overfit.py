"""Two images are learned by heart by every detector."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.engine.tiny import train
from tests.tasks.detection.tiny import config, make_data

# Enough updates that AP ends well above the bound for every seed, as rounding differs between processors.
CASES: dict[str, dict[str, dict[str, Any]]] = {
    "retinanet": {
        "data": {"short": 64}, "model": {"anchor": 3.4, "channels": 32}, "optim": {"lr": 3e-3},
        "schedule": {"epochs": 160}, "loss": {"boxes": 4.0}, "batch": {"size": 1},
    },
    "mask_rcnn": {
        "model": {"anchor": 10, "samples": 48, "channels": 16}, "optim": {"lr": 4e-3}, "schedule": {"epochs": 130},
    },
    "cascade_mask_rcnn": {
        "model": {"anchor": 10, "samples": 24, "channels": 16}, "optim": {"lr": 4e-3}, "schedule": {"epochs": 90},
    },
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("head", CASES)
def test_images_are_learned(tmp_path: Path, head: str) -> None:
    case = CASES[head]
    data = make_data(tmp_path / "data", count=2, scale=3)
    epochs = case["schedule"]["epochs"]
    made = config(
        data, tmp_path / "run", **{**case, "model": {"head": head, **case["model"]}, "ema": {"decay": 0.9},
        "schedule": {"epochs": epochs, "warmup_epochs": 5}, "run": {"eval_every": epochs, "save_every": epochs}},
    )  # fmt: skip
    folder = train(made)
    assert folder is not None
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["box_ap"] > 90, last
    if head != "retinanet":
        assert last["mask_ap"] > 90, last
    rows = json.loads((folder / "per_class.json").read_text())
    assert [row["class"] for row in rows] == ["square", "disc"]
