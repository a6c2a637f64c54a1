"""Two images are learned by heart by every detector."""

import json
from pathlib import Path

import pytest

from tests.engine.tiny import train
from tests.tasks.detection.tiny import config, make_data


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head", "epochs", "lr", "short", "model"),
    [
        ("retinanet", 100, 2e-3, 64, {"anchor": 3.4, "channels": 64}),
        ("mask_rcnn", 40, 4e-3, 96, {"anchor": 10, "samples": 64}),
        ("cascade_mask_rcnn", 60, 4e-3, 96, {"anchor": 10, "samples": 24}),
    ],
    ids=["retinanet", "mask_rcnn", "cascade_mask_rcnn"],
)
def test_two_images_are_learned(
    tmp_path: Path, head: str, epochs: int, lr: float, short: int, model: dict[str, float]
) -> None:
    made = config(
        make_data(tmp_path / "data"), tmp_path / "run", data={"short": short}, model={"head": head, **model},
        optim={"lr": lr}, schedule={"epochs": epochs, "warmup_epochs": 5}, ema={"decay": 0.9},
        run={"eval_every": epochs, "save_every": epochs},
    )  # fmt: skip
    folder = train(made)
    assert folder is not None
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["box_ap"] > 90, last
    if head != "retinanet":
        assert last["mask_ap"] > 90, last
    rows = json.loads((folder / "per_class.json").read_text())
    assert [row["class"] for row in rows] == ["square", "disc"]
