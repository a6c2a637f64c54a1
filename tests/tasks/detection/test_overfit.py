"""Two images are learned by heart by every detector."""

import json
from pathlib import Path

import pytest

from sightline.engine.train import train
from tests.tasks.detection.tiny import config, make_data


@pytest.mark.parametrize(
    ("head", "epochs", "anchor", "width", "samples"),
    [("retinanet", 160, 4, 64, 32), ("mask_rcnn", 60, 7, 32, 64), ("cascade_mask_rcnn", 90, 7, 32, 64)],
)
def test_two_images_are_learned(tmp_path: Path, head: str, epochs: int, anchor: int, width: int, samples: int) -> None:
    run = {"eval_every": epochs, "save_every": epochs}
    retina = head == "retinanet"
    made = config(
        make_data(tmp_path / "data"), tmp_path / "run",
        model={"head": head, "anchor": anchor, "channels": width, "samples": samples},
        optim={"lr": 1.5e-3 if retina else 2e-3}, schedule={"epochs": epochs, "warmup_epochs": 5}, run=run,
    )  # fmt: skip
    folder = train(made)
    assert folder is not None
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["box_ap"] > 90, last
    if not retina:
        assert last["mask_ap"] > 90, last
    rows = json.loads((folder / "per_class.json").read_text())
    assert [row["class"] for row in rows] == ["square", "disc"]
