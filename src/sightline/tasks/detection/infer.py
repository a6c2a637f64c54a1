"""From the outputs of a detector to boxes and masks in the pixels of the original image."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor
from torchvision.models.detection.roi_heads import paste_masks_in_image
from torchvision.models.detection.transform import resize_boxes
from torchvision.ops import box_convert, clip_boxes_to_image

from sightline.tasks.detection.coco import Json, encode


@dataclass(frozen=True)
class Detections:
    """What was found in an image, on the CPU.

    Args:
        boxes: (N, 4) left, top, right, bottom.
        labels: (N,) classes, from 1 on.
        scores: (N,).
        masks: (N, height, width) booleans, or None if the detector has none.
    """

    boxes: Tensor
    labels: Tensor
    scores: Tensor
    masks: Tensor | None = None


def in_original(found: Mapping[str, Tensor], given: Sequence[int], size: tuple[int, int]) -> Detections:
    """Outputs for an image of size `given` in the pixels of the original, which is (height, width) `size`."""
    boxes = clip_boxes_to_image(resize_boxes(found["boxes"].float(), list(given), list(size)), size)
    masks = None
    if "masks" in found:
        masks = (paste_masks_in_image(found["masks"].float(), boxes, size)[:, 0] > 0.5).cpu()
    return Detections(boxes.cpu(), found["labels"].cpu(), found["scores"].float().cpu(), masks)


def to_coco(found: Detections, image: int, categories: Sequence[int]) -> list[Json]:
    """Detections as COCO's results; masks as run lengths."""
    boxes = box_convert(found.boxes.double(), "xyxy", "xywh").tolist()
    rows: list[Json] = [
        {"image_id": image, "category_id": int(categories[label - 1]), "bbox": box, "score": value}
        for box, value, label in zip(boxes, found.scores.tolist(), found.labels.tolist(), strict=True)
    ]
    for row, mask in zip(rows, () if found.masks is None else found.masks, strict=found.masks is not None):
        row["segmentation"] = encode(mask)
    return rows
