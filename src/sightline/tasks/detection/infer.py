"""From the outputs of a detector to boxes and masks in the pixels of the original image."""

from collections.abc import Mapping, Sequence

from torch import Tensor
from torchvision.models.detection.roi_heads import paste_masks_in_image
from torchvision.models.detection.transform import resize_boxes
from torchvision.ops import box_convert, clip_boxes_to_image

from sightline.tasks.detection.coco import Json, encode

Objects = dict[str, Tensor]  # boxes (N, 4) left, top, right, bottom; labels (N,) from 1 on; scores (N,); perhaps masks


def in_original(found: Mapping[str, Tensor], given: Sequence[int], size: tuple[int, int]) -> Objects:
    """Outputs for an image of size `given` in the pixels of the original, which is (height, width) `size`, on the CPU.

    Masks are booleans (N, height, width).
    """
    boxes = clip_boxes_to_image(resize_boxes(found["boxes"].float(), list(given), list(size)), size)
    objects = {"boxes": boxes, "labels": found["labels"], "scores": found["scores"].float()}
    if "masks" in found:
        objects["masks"] = paste_masks_in_image(found["masks"].float(), boxes, size)[:, 0] > 0.5
    return {key: value.cpu() for key, value in objects.items()}


def to_coco(found: Objects, image: int, categories: Sequence[int]) -> list[Json]:
    """Objects as COCO's results; masks as run lengths."""
    boxes = box_convert(found["boxes"].double(), "xyxy", "xywh").tolist()
    rows: list[Json] = [
        {"image_id": image, "category_id": int(categories[label - 1]), "bbox": box, "score": value}
        for box, value, label in zip(boxes, found["scores"].tolist(), found["labels"].tolist(), strict=True)
    ]
    for row, mask in zip(rows, found.get("masks", ())):  # noqa: B905 - there may be none
        row["segmentation"] = encode(mask)
    return rows
