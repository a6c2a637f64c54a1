"""Masks of objects as COCO writes them: polygons, and run lengths as lists or text."""

import math
from typing import Any

import numpy as np

from sightline.tasks.detection.coco import is_whole

REACH = 10**6  # pixels from a corner of the image to the furthest point of a polygon that is still drawn
UNREADABLE = (ValueError, TypeError, LookupError, RuntimeError, ArithmeticError)  # what damaged masks raise


def decode(segmentation: Any, height: int, width: int) -> np.ndarray:
    """Polygons, or run lengths as a list or a string, -> (height, width) of 0 and 1.

    Raises:
        ValueError: there is no mask, or it belongs to an image of another size.
    """
    from faster_coco_eval import mask as tools

    check_mask(segmentation, height, width)
    if isinstance(segmentation, list):
        polygons = [[float(v) for v in polygon] for polygon in segmentation]
        return tools.decode(tools.merge(tools.frPyObjects(polygons, height, width)))
    listed = isinstance(segmentation["counts"], list)
    return tools.decode(tools.frPyObjects(segmentation, height, width) if listed else segmentation)


def check_mask(segmentation: Any, height: int, width: int) -> None:
    """Refuse what `decode` would, without drawing polygons.

    Raises:
        ValueError: there is no mask, or it belongs to an image of another size; damage may raise others of UNREADABLE.
    """
    from faster_coco_eval import mask as tools

    if isinstance(segmentation, list):
        polygons = [[float(v) for v in polygon] for polygon in segmentation]
        if not polygons or any(len(p) < 6 or len(p) % 2 or not all(map(math.isfinite, p)) for p in polygons):
            raise ValueError("a polygon needs three points or more" if polygons else "there is none")
        if (furthest := max(abs(v) for p in polygons for v in p)) > REACH:  # drawing takes memory by the length
            raise ValueError(f"a polygon reaches to {furthest:.3g}")
        return
    if not isinstance(segmentation, dict):
        raise ValueError("neither polygons nor run lengths")
    if list(segmentation["size"]) != [height, width]:
        raise ValueError(f"it is {segmentation['size'][0]}x{segmentation['size'][1]}, the image {height}x{width}")
    counts = segmentation["counts"]
    if isinstance(counts, str | bytes):
        tools.decode(segmentation)
    elif not isinstance(counts, list) or not all(is_whole(v) and v >= 0 for v in counts):
        raise ValueError("its run lengths are neither whole numbers nor a text")
    elif sum(counts) != height * width:
        raise ValueError("its run lengths do not fill the image")


def reason(error: Exception) -> str:
    """What is wrong with a mask, in a line."""
    return " ".join(str(error).split())[:120]
