"""COCO's average precision of boxes and masks, by faster-coco-eval."""

import contextlib
import io
import math

import numpy as np
import torch
from torch import Tensor, nn

from sightline.tasks.base import Scores
from sightline.tasks.dense.task import DenseScorer
from sightline.tasks.dense.transforms import normalize
from sightline.tasks.detection.coco import Json, to_coco
from sightline.tasks.detection.data import Split
from sightline.tasks.detection.model import Card, Head, in_original
from sightline.tasks.evaluation import Gather, Reduce, class_rows

KINDS = {"box": "bbox", "mask": "segm"}
NAMES = ("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large")
Item = tuple[Tensor, int]  # uint8 image (3, h, w), index in the split


def score(truth: Json, found: list[Json], masks: bool, seconds: float = 0.0) -> Scores:
    """`box_ap`, `box_ap50`, ..., `mask_ap`, ... in percent, of sizes that occur; by class `box_ap` and `mask_ap`.

    Args:
        truth: COCO instances.
        found: COCO results, with `segmentation` if masks are scored.
        masks: whether masks are scored.
    """
    values: dict[str, float] = {}
    by_class: dict[str, list[float]] = {}
    for name in ("box", "mask") if masks else ("box",):
        figures, by_class[f"{name}_ap"] = _evaluate(truth, found, KINDS[name])
        values |= {f"{name}_{key}": v for key, v in zip(NAMES, figures, strict=True) if not math.isnan(v)}
    rows = class_rows([category["name"] for category in truth["categories"]], by_class)
    return Scores(values, rows, images=len(truth["images"]), seconds=seconds)


def _evaluate(truth: Json, found: list[Json], kind: str) -> tuple[list[float], list[float]]:
    """The first six of COCO's figures, and the average precision of every class, in percent; nan without objects."""
    from faster_coco_eval import COCO, COCOeval_faster

    with contextlib.redirect_stdout(io.StringIO()):
        known = COCO(truth)
        # loadRes rejects an empty list
        results = known.loadRes([dict(item) for item in found]) if found else COCO({**truth, "annotations": []})
        evaluation = COCOeval_faster(known, results, kind, extra_calc=False)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    precision = np.asarray(evaluation.eval["precision"])  # overlaps, recalls, classes, areas, detections; -1 for none
    precision = precision.reshape(10, 101, len(truth["categories"]), 4, -1)[:, :, :, 0, -1]
    parts = (np.asarray(evaluation.stats)[: len(NAMES)], np.ma.masked_less(precision, 0).mean(axis=(0, 1)))
    figures, by_class = (100 * np.ma.masked_less(part, 0).filled(math.nan) for part in parts)
    return figures.tolist(), by_class.tolist()


class ObjectScorer(DenseScorer[Head, Item]):
    """Collects what is found in the images of a split, which may differ in size; those left out do not count."""

    def __init__(self, card: Card, device: torch.device, split: Split) -> None:
        super().__init__(card, device)
        self.split = split
        self.rows: list[Json] = []
        self.seen: list[int] = []

    def add(self, model: nn.Module, items: list[Item]) -> int:
        images = [normalize(pixels.to(self.device), self.card.mean, self.card.std) for pixels, _ in items]
        outputs = model(images) if images else []
        for (pixels, index), found in zip(items, outputs, strict=True):
            entry = self.split.entries[index]
            objects = in_original(found, pixels.shape[-2:], (entry.height, entry.width))
            self.rows += to_coco(objects, entry.number, self.split.categories)
            self.seen.append(index)
        return len(items)

    def result(self, reduce: Reduce, gather: Gather, seconds: float) -> Scores:
        rows, seen = gather(self.rows), gather(self.seen)
        return score(self.split.ground_truth(seen), rows, self.split.masks, seconds)
