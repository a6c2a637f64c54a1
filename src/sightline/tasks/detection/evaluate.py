"""Evaluation of a detector by COCO's metrics."""

import time
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from sightline.tasks.base import Advance
from sightline.tasks.dense.transforms import normalize
from sightline.tasks.detection.coco import Json
from sightline.tasks.detection.data import Split
from sightline.tasks.detection.infer import in_original, to_coco
from sightline.tasks.detection.metrics import DetectionResult, score
from sightline.tasks.detection.model import Card, has_masks
from sightline.util.device import autocast

Item = tuple[int, Tensor]  # index in the split, uint8 image (3, h, w)


@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: Iterable[list[Item]],
    split: Split,
    card: Card,
    *,
    device: torch.device,
    precision: str = "no",
    gather: Callable[[list[object]], list[object]] | None = None,
    on_batch: Advance | None = None,
) -> DetectionResult:
    """COCO's figures over a split; the mode of the model is restored afterwards.

    Args:
        model: a detector.
        batches: lists of images with their indices; images that are left out do not count.
        split: the truth.
        card: mean, standard deviation, and whether masks are scored.
        precision: "no", "fp16" or "bf16" for autocast.
        gather: joins lists of all processes; every process must then call this.
        on_batch: called with the number of images after every batch.
    """
    training, start, masks = model.training, time.perf_counter(), has_masks(card.head.name)
    rows: list[Json] = []
    seen: list[int] = []
    model.eval()
    try:
        for batch in batches:
            images = [normalize(pixels.to(device), card.mean, card.std) for _, pixels in batch]
            with autocast(device, precision):
                outputs = model(images) if images else []
            for (index, _), image, found in zip(batch, images, outputs, strict=True):
                seen.append(index)
                entry = split.entries[index]
                detections = in_original(found, image.shape[-2:], (entry.height, entry.width))
                rows += to_coco(detections, entry.number, split.categories)
            if on_batch is not None:
                on_batch(len(batch))
    finally:
        model.train(training)
    if gather is not None:
        rows, seen = gather(rows), gather(seen)  # type: ignore[arg-type, assignment]
    return score(split.ground_truth(masks, seen), rows, masks, time.perf_counter() - start)
