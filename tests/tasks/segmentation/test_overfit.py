"""Two images are learned by heart, by both decoders, by a pyramid and by a plain transformer."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.engine.tiny import train
from tests.tasks.segmentation.tiny import config, make_data

PLAIN = {"name": "inline_deit_tiny", "args": {"depths": 2, "embed_dims": 32, "num_heads": 2}}
CALM = {"scale": [1.0, 1.0], "hflip": 0.0, "colour": False, "most_of_one": 1.0}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "epochs"),
    [({"head": "upernet"}, 60), ({"head": "semantic_fpn", "channels": 64}, 50), ({"head": "upernet", **PLAIN}, 80)],
    ids=["upernet", "semantic_fpn", "deit"],
)
def test_two_images_are_learned(tmp_path: Path, model: dict[str, Any], epochs: int) -> None:
    data = make_data(tmp_path / "data")
    run = {"eval_every": epochs, "save_every": epochs}
    made = config(
        data, tmp_path / "run", model=model, augment=CALM, loss={"auxiliary": 0.0}, schedule={"epochs": epochs}, run=run
    )
    folder = train(made)
    assert folder is not None
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["miou"] > 90, last
    assert last["aacc"] > 90
    rows = json.loads((folder / "per_class.json").read_text())
    assert [row["class"] for row in rows] == ["ground", "square", "disc"]
    assert json.loads((folder / "done.json").read_text())["miou"] == last["miou"]
