"""COCO's average precision of boxes and masks, by faster-coco-eval."""

import contextlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sightline.tasks.base import Row
from sightline.tasks.detection.coco import Json

KINDS = {"box": "bbox", "mask": "segm"}
NAMES = ("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large")


@dataclass(frozen=True)
class DetectionResult:
    """Scores in percent over a whole set; iterating gives `(name, value)`.

    Args:
        scores: `box_ap`, `box_ap50`, ..., `mask_ap`, ...; nan if no object has that size.
        by_class: `box_ap` and `mask_ap` of every class, nan for one without objects.
        images, seconds: of the evaluation.
    """

    scores: dict[str, float]
    by_class: dict[str, list[float]]
    images: int
    seconds: float
    confusion: None = None

    def __iter__(self) -> Iterator[tuple[str, float]]:
        yield from ((name, value) for name, value in self.scores.items() if value == value)

    def per_class(self, names: Sequence[str]) -> list[Row]:
        """One row per class: name and average precisions in percent, or None."""
        rows: list[Row] = []
        for i, name in enumerate(names):
            values = {key: column[i] for key, column in self.by_class.items()}
            rows.append({"class": name, **{k: round(v, 4) if v == v else None for k, v in values.items()}})
        return rows


def score(truth: Json, found: list[Json], masks: bool, seconds: float = 0.0) -> DetectionResult:
    """Compare detections with the truth.

    Args:
        truth: COCO instances.
        found: COCO results, with `segmentation` if masks are scored.
        masks: whether masks are scored.
    """
    scores: dict[str, float] = {}
    by_class: dict[str, list[float]] = {}
    for name in ("box", "mask") if masks else ("box",):
        values, precision = _evaluate(truth, found, KINDS[name])
        scores |= {f"{name}_{key}": value for key, value in zip(NAMES, values, strict=True)}
        by_class[f"{name}_ap"] = precision
    return DetectionResult(scores, by_class, len(truth["images"]), seconds)


def _evaluate(truth: Json, found: list[Json], kind: str) -> tuple[list[float], list[float]]:
    """The first six of COCO's figures, and the average precision of every class, in percent."""
    from faster_coco_eval import COCO, COCOeval_faster

    classes = len(truth["categories"])
    if not found:  # loadRes rejects an empty list
        counted = {a["category_id"] for a in truth["annotations"] if not a["iscrowd"]}
        rows = [0.0 if c["id"] in counted else float("nan") for c in truth["categories"]]
        return [0.0 if counted else float("nan")] * len(NAMES), rows
    with contextlib.redirect_stdout(io.StringIO()):
        known = COCO(truth)
        results = known.loadRes([dict(item) for item in found])
        evaluation = COCOeval_faster(known, results, kind, extra_calc=False)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    figures = [100 * float(v) if v >= 0 else float("nan") for v in np.asarray(evaluation.stats)[: len(NAMES)]]
    precision = np.asarray(evaluation.eval["precision"])  # overlaps, recalls, classes, areas, detections
    precision = precision.reshape(10, 101, classes, 4, -1)[:, :, :, 0, -1]
    rows = []
    for i in range(classes):
        known_values = precision[:, :, i][precision[:, :, i] > -1]
        rows.append(100 * float(known_values.mean()) if known_values.size else float("nan"))
    return figures, rows
