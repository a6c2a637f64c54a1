"""Mixup, cutmix and random erasing of batches on their device.

Random numbers come from a generator that knows the position of an image in the whole batch, and partners are at
mirrored positions; so the result for an image does not depend on the number of processes.
"""

import numpy as np
import torch
from torch import Tensor

from sightline.tasks.classification.config import Augment

ERASED_AREA = (0.02, 1 / 3)
ERASED_RATIO = (0.3, 1 / 0.3)


def mixes(augment: Augment, epoch: int) -> bool:
    """Whether images are mixed in this epoch."""
    off = augment.mix_off_epoch
    return (augment.mixup > 0 or augment.cutmix > 0) and augment.mix_prob > 0 and (off is None or epoch < off)


def mix(
    images: Tensor,
    targets: Tensor,
    classes: int,
    augment: Augment,
    rng: np.random.Generator,
    slots: Tensor,
    size: int,
) -> tuple[Tensor, Tensor]:
    """Mix every image with the one at the mirrored position of its batch.

    Args:
        images: (B, C, H, W), normalized.
        targets: (B,) classes.
        classes: their number.
        rng: for this micro-batch, the same in every process.
        slots: (B,) positions of these images among the `size` images of the micro-batch.

    Returns:
        Mixed images, and probabilities (B, classes).
    """
    ratio, cut, centre = (values[slots.numpy()] for values in _draw(augment, rng, size))
    # Not F.one_hot, which looks for the largest class first.
    soft = (targets.unsqueeze(1) == torch.arange(classes, device=targets.device)).float()
    if (ratio == 1).all():
        return images, soft
    height, width = images.shape[-2:]
    box, inside = _boxes(ratio, centre, height, width)
    ratio = np.where(cut, 1 - inside, ratio)
    amount = torch.from_numpy(ratio).float().to(images.device, non_blocking=True)
    partner = images.flip(0)
    mixed = torch.lerp(partner, images, amount.view(-1, 1, 1, 1))
    if cut.any():
        inner = _mask(torch.from_numpy(box).to(images.device, non_blocking=True), height, width)
        cuts = torch.from_numpy(cut).to(images.device, non_blocking=True).view(-1, 1, 1, 1)
        mixed = torch.where(cuts, torch.where(inner, partner, images), mixed)
    return mixed, torch.lerp(soft.flip(0), soft, amount.view(-1, 1))


def _draw(augment: Augment, rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For all images of a micro-batch: the share that stays, whether it is cut, and the center of the cut."""
    count = {"batch": 1, "pair": (size + 1) // 2, "elem": size}[augment.mix_mode]
    up = rng.beta(augment.mixup, augment.mixup, count) if augment.mixup else np.ones(count)
    down = rng.beta(augment.cutmix, augment.cutmix, count) if augment.cutmix else np.ones(count)
    both = augment.mixup > 0 and augment.cutmix > 0
    cut = rng.random(count) < augment.mix_switch if both else np.full(count, augment.cutmix > 0)
    ratio = np.where(rng.random(count) < augment.mix_prob, np.where(cut, down, up), 1.0)
    drawn = (ratio, cut, rng.random((count, 2)))
    if augment.mix_mode == "elem":
        return drawn
    if augment.mix_mode == "batch":
        return tuple(np.repeat(values, size, 0) for values in drawn)  # type: ignore[return-value]
    mirrored = np.minimum(np.arange(size), np.arange(size)[::-1])
    return tuple(values[mirrored] for values in drawn)  # type: ignore[return-value]


def _boxes(ratio: np.ndarray, centre: np.ndarray, height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns (B, 4) of the cuts, and the share of the image that they take."""
    side = np.sqrt(1 - ratio)
    rows, columns = (centre[:, 0] * height).astype(int), (centre[:, 1] * width).astype(int)
    tall, wide = (side * height / 2).astype(int), (side * width / 2).astype(int)
    top, bottom = np.clip(rows - tall, 0, height), np.clip(rows + tall, 0, height)
    left, right = np.clip(columns - wide, 0, width), np.clip(columns + wide, 0, width)
    return np.stack([top, bottom, left, right], 1), (bottom - top) * (right - left) / (height * width)


def _mask(box: Tensor, height: int, width: int) -> Tensor:
    """(B, 4) rows and columns -> (B, 1, H, W), true inside."""
    top, bottom, left, right = box.view(-1, 4, 1, 1, 1).unbind(1)
    row = torch.arange(height, device=box.device).view(1, 1, -1, 1)
    column = torch.arange(width, device=box.device).view(1, 1, 1, -1)
    return (row >= top) & (row < bottom) & (column >= left) & (column < right)


def erase(images: Tensor, augment: Augment, rng: np.random.Generator, slots: Tensor, size: int, noise: int) -> Tensor:
    """Replace a rectangle of some images by noise, by one random color, or by the mean.

    Args:
        images: (B, C, H, W), normalized.
        noise: seed of the noise.
    """
    drawn = rng.random((size, 5))[slots.numpy()]
    chosen, area, ratio, down, across = torch.from_numpy(drawn).float().to(images.device, non_blocking=True).unbind(1)
    height, width = images.shape[-2:]
    area = (ERASED_AREA[0] + area * (ERASED_AREA[1] - ERASED_AREA[0])) * height * width
    low, high = (float(np.log(limit)) for limit in ERASED_RATIO)
    ratio = torch.exp(low + ratio * (high - low))
    tall = (area * ratio).sqrt().round().clamp(1, height)
    wide = (area / ratio).sqrt().round().clamp(1, width)
    top, left = (down * (height - tall)).round(), (across * (width - wide)).round()
    erased = _mask(torch.stack([top, top + tall, left, left + wide], 1), height, width)
    erased = erased & (chosen < augment.erase).view(-1, 1, 1, 1)
    if augment.erase_mode == "const":
        return images.masked_fill(erased, 0.0)
    generator = torch.Generator(images.device).manual_seed(noise)
    shape = images.shape if augment.erase_mode == "pixel" else (*images.shape[:2], 1, 1)
    fill = torch.randn(shape, device=images.device, dtype=images.dtype, generator=generator)
    return torch.where(erased, fill, images)
