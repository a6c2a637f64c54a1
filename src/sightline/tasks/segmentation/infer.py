"""From a normalised image to the classes of its pixels: whole or by windows, at several scales, mirrored."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sightline.tasks.segmentation.config import Inference
from sightline.tasks.segmentation.transforms import pair


def windows(size: int, window: int, stride: int) -> Iterator[int]:
    """Where windows of a side begin: every `stride`, the last one at the end."""
    if size <= window:
        yield 0
        return
    yield from range(0, size - window, stride)
    yield size - window


def slide(model: nn.Module, images: Tensor, size: tuple[int, int], stride: tuple[int, int]) -> Tensor:
    """Logits of images (B, 3, H, W) by overlapping windows of `size`, their mean where they overlap."""
    height, width = images.shape[-2:]
    tall, wide = min(size[0], height), min(size[1], width)
    total = seen = None
    for top in windows(height, tall, stride[0]):
        for left in windows(width, wide, stride[1]):
            part = model(images[..., top : top + tall, left : left + wide])
            if total is None or seen is None:
                total = part.new_zeros(len(images), part.shape[1], height, width)
                seen = part.new_zeros(1, 1, height, width)
            total[..., top : top + tall, left : left + wide] += part
            seen[..., top : top + tall, left : left + wide] += 1
    assert total is not None
    return total / seen


def probabilities(
    model: nn.Module, images: Tensor, test: Inference, size: int | tuple[int, int], out: Sequence[int] | None = None
) -> Tensor:
    """(B, classes, H, W), averaged over scales and mirror images.

    Args:
        model: gives logits of the size of its images.
        images: normalised, (B, 3, h, w).
        test: how.
        size: of a window.
        out: (H, W) of what comes out; by default as the images.
    """
    window = pair(size)
    stride = pair(test.stride) if test.stride is not None else (max(window[0] * 2 // 3, 1), max(window[1] * 2 // 3, 1))
    wanted = tuple(out or images.shape[-2:])
    total: Any = 0
    for factor in test.scales:
        scaled = images
        if factor != 1:
            sides = [max(1, round(side * factor)) for side in images.shape[-2:]]
            scaled = F.interpolate(images, size=sides, mode="bilinear", align_corners=False, antialias=factor < 1)
        for mirrored in (False, True) if test.flip else (False,):
            given = scaled.flip(-1) if mirrored else scaled
            logits = slide(model, given, window, stride) if test.mode == "slide" else model(given)
            logits = logits.flip(-1) if mirrored else logits
            logits = F.interpolate(logits.float(), size=wanted, mode="bilinear", align_corners=False)
            total = total + logits.softmax(1)
    return total / (len(test.scales) * (2 if test.flip else 1))


@torch.no_grad()
def predict(
    model: nn.Module, images: Tensor, test: Inference, size: int | tuple[int, int], out: Sequence[int] | None = None
) -> Tensor:
    """(B, H, W) classes of the pixels; arguments as of `probabilities`."""
    return probabilities(model, images, test, size, out).argmax(1)
