"""From a normalized image to the probabilities of its pixels: whole or by windows, at several scales, flipped."""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sightline.tasks.dense.transforms import pair, scaled
from sightline.tasks.segmentation.config import Inference

MAX_VALUES = 1 << 24  # of all classes of the pixels that are classified at once


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
    target = list(out or images.shape[-2:])
    return _mean(F.interpolate(logits, size=target, mode="bilinear") for logits in _passes(model, images, test, size))


def likeliest(
    model: nn.Module, images: Tensor, test: Inference, size: int | tuple[int, int], out: Sequence[int]
) -> Tensor:
    """The class of every pixel, (B, H, W), of the largest of the `probabilities`.

    Of large images they are made for some rows at a time: 12 million pixels of 150 classes would take 7 GB.
    """
    passes = list(_passes(model, images, test, size))
    (height, width), (batch, classes) = out, passes[0].shape[:2]
    rows = max(1, MAX_VALUES // (batch * classes * width))
    if rows >= height:
        return _mean(F.interpolate(logits, size=[height, width], mode="bilinear") for logits in passes).argmax(1)
    bands = (range(top, min(top + rows, height)) for top in range(0, height, rows))
    return torch.cat([_mean(_band(logits, height, width, band) for logits in passes).argmax(1) for band in bands], 1)


def _passes(model: nn.Module, images: Tensor, test: Inference, size: int | tuple[int, int]) -> Iterator[Tensor]:
    """The logits of every scale and flip, at the size of its images."""
    window = pair(size)
    stride = pair(test.stride) if test.stride is not None else (max(window[0] * 2 // 3, 1), max(window[1] * 2 // 3, 1))
    for factor in test.scales:
        resized = images
        if factor != 1:
            sides = list(scaled(images.shape[-2], images.shape[-1], factor))
            resized = F.interpolate(images, size=sides, mode="bilinear", align_corners=False, antialias=factor < 1)
        for given in (resized, resized.flip(-1)) if test.flip else (resized,):
            logits = slide(model, given, window, stride) if test.mode == "slide" else model(given)
            yield (logits if given is resized else logits.flip(-1)).float()


def _mean(logits: Iterable[Tensor]) -> Tensor:
    """The mean of the probabilities."""
    total, count = torch.zeros(()), 0
    for each in logits:
        total, count = each.softmax(1) + total.to(each.device), count + 1
    return total / count


def _band(logits: Tensor, height: int, width: int, rows: range) -> Tensor:
    """Some rows of logits (B, classes, h, w) resized to height x width: (B, classes, rows, width)."""
    last = logits.shape[-2] - 1
    centre = torch.arange(rows.start, rows.stop, device=logits.device, dtype=torch.float64) + 0.5
    place = (centre * (last + 1) / height - 0.5).clamp(0, last)
    above = place.long()
    share = (place - above).to(logits.dtype)[:, None]
    mixed = logits[:, :, above] * (1 - share) + logits[:, :, (above + 1).clamp(max=last)] * share
    return F.interpolate(mixed, size=[len(rows), width], mode="bilinear")
