"""Mixup, cutmix and random erasing of batches on their device.

Random numbers are drawn for the whole micro-batch, and partners are at mirrored positions of it; so the result for an
image does not depend on the number of processes. Shape letters: B local images of a micro-batch, K classes.
"""

import math

import numpy as np
import torch
from torch import Tensor

from sightline.data.order import Order, Placement
from sightline.tasks.classification.config import Augment
from sightline.util.errors import InputError

ERASED_AREA = (0.02, 1 / 3)
ERASED_RATIO = (0.3, 1 / 0.3)


def mixes(augment: Augment, epoch: int) -> bool:
    """Whether images are mixed in this epoch."""
    off = augment.mix_off_epoch
    return (augment.mixup > 0 or augment.cutmix > 0) and augment.mix_prob > 0 and (off is None or epoch < off)


def check_mixing(augment: Augment, order: Order, placement: Placement) -> None:
    """Raise InputError if images are to be mixed in pairs that lie in two processes."""
    if order.ranks > 1 and order.local % 2 and mixes(augment, 0):
        raise InputError(
            f"batch.size={placement.batch} gives {order.local} images per process and micro-batch, but mixing "
            f"needs an even number; give a multiple of {2 * placement.ranks * placement.accumulate}"
        )


def mix(
    images: Tensor, targets: Tensor, classes: int, augment: Augment, rng: np.random.Generator, order: Order
) -> tuple[Tensor, Tensor]:
    """Mix every image with the one at the mirrored position of its batch.

    Args:
        images: (B, C, H, W), normalized.
        targets: (B,) classes.
        classes: their number.
        rng: for this micro-batch, the same in every process.
        order: has the positions of these images in the micro-batch.

    Returns:
        Mixed images, and probabilities (B, K).
    """
    height, width = images.shape[-2:]
    ratio, cut, down, across = _columns(_draw(augment, rng, order.micro_batch), order, images.device)
    row, column = (down * height).floor(), (across * width).floor()
    tall, wide = ((1 - ratio).sqrt() * side / 2 for side in (height, width))
    outside = ~_box(row - tall.floor(), row + tall.floor(), column - wide.floor(), column + wide.floor(), images)
    # B 1 H W: how much of a pixel is of the image itself, the rest is of its partner
    own = torch.where(cut.view(-1, 1, 1, 1) > 0, outside.float(), ratio.view(-1, 1, 1, 1))
    # Not F.one_hot, which looks for the largest class first.
    soft = (targets.unsqueeze(1) == torch.arange(classes, device=targets.device)).float()
    return torch.lerp(images.flip(0), images, own), torch.lerp(soft.flip(0), soft, own.mean((2, 3)))


def _draw(augment: Augment, rng: np.random.Generator, size: int) -> np.ndarray:
    """(size, 4): the share of an image that stays, whether it is cut, and the center of the cut from 0 to 1."""
    here = np.arange(size)
    which = {"batch": 0 * here, "pair": np.minimum(here, here[::-1]), "elem": here}[augment.mix_mode]
    count = int(which.max()) + 1
    cut = rng.random(count) < (augment.mix_switch if augment.mixup and augment.cutmix else float(augment.cutmix > 0))
    alpha = np.where(cut, augment.cutmix, augment.mixup)
    ratio = np.where(rng.random(count) < augment.mix_prob, rng.beta(alpha, alpha), 1.0)
    return np.column_stack([ratio, cut, rng.random((count, 2))])[which]


def erase(images: Tensor, augment: Augment, rng: np.random.Generator, order: Order, noise: int) -> Tensor:
    """Replace a rectangle of some images by noise, by one random color, or by the mean.

    Args:
        images: (B, C, H, W), normalized.
        rng, order: as of `mix`.
        noise: seed of the noise.
    """
    height, width = images.shape[-2:]
    chosen, area, ratio, down, across = _columns(rng.random((order.micro_batch, 5)), order, images.device)
    area = (ERASED_AREA[0] + area * (ERASED_AREA[1] - ERASED_AREA[0])) * height * width
    low, high = (math.log(limit) for limit in ERASED_RATIO)
    ratio = torch.exp(low + ratio * (high - low))
    tall = (area * ratio).sqrt().round().clamp(1, height)
    wide = (area / ratio).sqrt().round().clamp(1, width)
    top, left = (down * (height - tall)).round(), (across * (width - wide)).round()
    erased = _box(top, top + tall, left, left + wide, images) & (chosen < augment.erase).view(-1, 1, 1, 1)
    if augment.erase_mode == "const":
        return images.masked_fill(erased, 0.0)
    generator = torch.Generator(images.device).manual_seed(noise)
    shape = images.shape if augment.erase_mode == "pixel" else (*images.shape[:2], 1, 1)
    fill = torch.randn(shape, device=images.device, dtype=images.dtype, generator=generator)
    return torch.where(erased, fill, images)


def _columns(drawn: np.ndarray, order: Order, device: torch.device) -> tuple[Tensor, ...]:
    """The columns of the local rows, each (B,), by one copy to the device."""
    return torch.from_numpy(drawn[order.slots().numpy()]).float().to(device, non_blocking=True).unbind(1)


def _box(top: Tensor, bottom: Tensor, left: Tensor, right: Tensor, images: Tensor) -> Tensor:
    """(B, 1, H, W), true from row `top` to below `bottom` and from column `left` to before `right`, each (B,)."""
    height, width = images.shape[-2:]
    top, bottom, left, right = (limit.view(-1, 1, 1, 1) for limit in (top, bottom, left, right))
    row = torch.arange(height, device=images.device).view(-1, 1)
    column = torch.arange(width, device=images.device)
    return (row >= top) & (row < bottom) & (column >= left) & (column < right)
