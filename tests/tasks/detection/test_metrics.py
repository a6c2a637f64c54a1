"""Average precision: the same figures as pycocotools on the same detections, and the cases at the edge."""

import contextlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sightline.tasks.detection.coco import to_coco
from sightline.tasks.detection.config import Data
from sightline.tasks.detection.data import Split, open_split
from sightline.tasks.detection.metrics import score
from sightline.tasks.detection.model import in_original
from tests.tasks.detection.tiny import make_data


@pytest.fixture
def split(tmp_path: Path) -> Split:
    return open_split(Data(path=str(make_data(tmp_path, 8))), "val", masks=True)


def detections(split: Split, noise: float) -> list[dict[str, Any]]:
    """The truth, shaken, and false alarms."""
    rng, rows = np.random.default_rng(0), []
    for i in range(len(split)):
        target = split.target(i)
        shift = torch.from_numpy(rng.normal(0, noise, (len(target["boxes"]), 4))).float()
        masks = torch.stack([m.roll(int(rng.normal(0, noise)), 1) for m in target["masks"]]).bool()
        scores = torch.from_numpy(rng.random(len(masks))).float()
        found = {"boxes": target["boxes"] + shift, "labels": target["labels"], "scores": scores, "masks": masks}
        rows += to_coco(found, split.entries[i].number, split.categories)
        if noise:
            wrong = {**found, "labels": 3 - target["labels"], "scores": scores / 2}
            rows += to_coco(wrong, split.entries[i].number, split.categories)
    return rows


def by_pycocotools(split: Split, rows: list[dict[str, Any]], kind: str) -> list[float]:
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = split.ground_truth()
        truth.createIndex()
        evaluation = COCOeval(truth, truth.loadRes([dict(row) for row in rows]), kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return [100 * float(value) for value in evaluation.stats[:6]]


@pytest.mark.parametrize("noise", [0.0, 2.0, 5.0])
def test_the_figures_are_those_of_pycocotools(split: Split, noise: float) -> None:
    rows = detections(split, noise)
    scores = score(split.ground_truth(), rows, masks=True).values
    for name, kind in (("box", "bbox"), ("mask", "segm")):
        expected = by_pycocotools(split, rows, kind)
        found = [scores.get(f"{name}_{key}") for key in ("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large")]
        for a, b in zip(found, expected, strict=True):
            assert b == -100 if a is None else abs(a - b) < 1e-6
    if not noise:
        assert scores["box_ap"] == pytest.approx(100)
        assert scores["mask_ap"] == pytest.approx(100)
    else:
        assert 0 < scores["box_ap"] < 95


def test_classes_add_up_to_the_whole(split: Split) -> None:
    result = score(split.ground_truth(), detections(split, 3.0), masks=True)
    rows = result.per_class
    assert [row["class"] for row in rows] == ["square", "disc"]
    assert np.mean([row["box_ap"] for row in rows]) == pytest.approx(result.values["box_ap"], abs=1e-3)
    assert result.confusion is None


def test_nothing_found_is_zero(split: Split) -> None:
    result = score(split.ground_truth(), [], masks=False)
    assert dict(result)["box_ap"] == 0
    assert result.per_class[0] == {"class": "square", "box_ap": 0.0}


def test_answers_go_back_to_the_size_of_the_file() -> None:
    masks = torch.ones(1, 1, 28, 28)
    found = {
        "boxes": torch.tensor([[10.0, 20.0, 30.0, 60.0]]), "scores": torch.ones(1), "labels": torch.ones(1).long(),
        "masks": masks,
    }  # fmt: skip
    original = in_original(found, (100, 50), (200, 150))
    assert original["boxes"].tolist() == [[30.0, 40.0, 90.0, 120.0]]
    down, across = torch.where(original["masks"][0])
    assert original["masks"].shape == (1, 200, 150)
    assert abs(int(down.min()) - 40) <= 2
    assert abs(int(down.max()) - 120) <= 2
    assert abs(int(across.min()) - 30) <= 2
    assert abs(int(across.max()) - 90) <= 2
