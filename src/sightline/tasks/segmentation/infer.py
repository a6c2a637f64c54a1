"""From a normalized image to the probabilities of its pixels: whole or by windows, at several scales, flipped."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sightline.tasks.dense.transforms import pair, scaled
from sightline.tasks.segmentation.config import Inference


def windows(size: int, window: int, stride: int) -> Iterator[int]:
    """Where windows start along a side: every `stride` pixels, the last one at the end."""
    if size <= window:
        yield 0
        return
    yield from range(0, size - window, stride)
    yield size - window


def slide(model: nn.Module, images: Tensor, size: tuple[int, int], stride: tuple[int, int]) -> Tensor:
    """Logits of images (B, 3, H, W) by windows of `size`, averaged where they overlap."""
    height, width = images.shape[-2:]
    tall, wide = min(size[0], height), min(size[1], width)
    total = count = None
    for top in windows(height, tall, stride[0]):
        for left in windows(width, wide, stride[1]):
            logits = model(images[..., top : top + tall, left : left + wide])
            if total is None or count is None:
                total = logits.new_zeros(len(images), logits.shape[1], height, width)
                count = logits.new_zeros(1, 1, height, width)
            total[..., top : top + tall, left : left + wide] += logits
            count[..., top : top + tall, left : left + wide] += 1
    assert total is not None
    return total / count


def probabilities(
    model: nn.Module, images: Tensor, test: Inference, size: int | tuple[int, int], out: Sequence[int] | None = None
) -> Tensor:
    """(B, classes, H, W), averaged over scales and horizontal flips.

    Args:
        model: gives logits of the size of its images.
        images: normalized, (B, 3, h, w).
        test: how.
        size: of a window.
        out: (H, W) of the result; by default that of the images.
    """
    window = pair(size)
    stride = pair(test.stride) if test.stride is not None else (max(window[0] * 2 // 3, 1), max(window[1] * 2 // 3, 1))
    target = tuple(out or images.shape[-2:])
    total = images.new_zeros((), dtype=torch.float32)
    for factor in test.scales:
        resized = images
        if factor != 1:
            sides = list(scaled(images.shape[-2], images.shape[-1], factor))
            resized = F.interpolate(images, size=sides, mode="bilinear", align_corners=False, antialias=factor < 1)
        for given in (resized, resized.flip(-1)) if test.flip else (resized,):
            logits = slide(model, given, window, stride) if test.mode == "slide" else model(given)
            logits = logits if given is resized else logits.flip(-1)
            logits = F.interpolate(logits.float(), size=target, mode="bilinear", align_corners=False)
            total = total + logits.softmax(1)
    return total / (len(test.scales) * (2 if test.flip else 1))
