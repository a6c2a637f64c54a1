"""From a detector's answers to boxes and masks in the pixels of the image as it is in its file."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchvision.models.detection.roi_heads import paste_masks_in_image

Found = dict[str, Tensor]


def in_place(found: Mapping[str, Tensor], given: Sequence[int], height: int, width: int) -> Found:
    """Answers for an image that was given at another size.

    Args:
        found: of the detector.
        given: (h, w) that it saw.
        height, width: of the file.

    Returns:
        The same with boxes in the file's pixels, and masks as bool (N, height, width).
    """
    factors = torch.tensor([width / given[1], height / given[0]], device=found["boxes"].device).repeat(2)
    boxes = (found["boxes"].float() * factors).clamp(min=0)
    boxes = torch.minimum(boxes, boxes.new_tensor([width, height, width, height]))
    result = {"boxes": boxes.cpu(), "scores": found["scores"].float().cpu(), "labels": found["labels"].cpu()}
    if "masks" in found:
        pasted = paste_masks_in_image(found["masks"].float(), boxes, (height, width))
        result["masks"] = (pasted[:, 0] > 0.5).cpu()
    return result


def to_coco(found: Found, image: int, categories: Sequence[int]) -> list[dict[str, Any]]:
    """Detections in COCO's result form; masks as run lengths."""
    boxes = found["boxes"].double()
    sizes = torch.cat([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], 1).tolist()
    rows = [
        {"image_id": image, "category_id": int(categories[label - 1]), "bbox": box, "score": value}
        for box, value, label in zip(sizes, found["scores"].tolist(), found["labels"].tolist(), strict=True)
    ]
    if "masks" in found:
        for row, mask in zip(rows, found["masks"], strict=True):
            row["segmentation"] = encode(mask)
    return rows


def encode(mask: Tensor) -> dict[str, Any]:
    """A mask (H, W) as COCO's run lengths, in text."""
    from faster_coco_eval import mask as tools

    encoded = tools.encode(np.asfortranarray(mask.numpy().astype(np.uint8)))
    counts = encoded["counts"]
    return {
        "size": [int(v) for v in encoded["size"]],
        "counts": counts.decode() if isinstance(counts, bytes) else counts,
    }
