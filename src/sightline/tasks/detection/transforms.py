"""What happens to an image, its boxes and its masks, always to all of them: resize, jitter, mirror."""

import random

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F
from torchvision.ops import masks_to_boxes

from sightline.tasks.detection.config import Augment, Data
from sightline.tasks.detection.data import Target, clipped
from sightline.tasks.segmentation.transforms import fitted, pair

LEAST = 1.0  # pixels of width and height below which a box is dropped after a crop
Pixels = Tensor  # uint8 (3, H, W)


def to_pixels(image: Image.Image) -> Pixels:
    """uint8 (3, H, W)."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def resize(image: Image.Image, target: Target, height: int, width: int) -> tuple[Image.Image, Target]:
    """All at another size."""
    if (image.height, image.width) == (height, width):
        return image, target
    factors = torch.tensor([width / image.width, height / image.height]).repeat(2)
    target = {**target, "boxes": target["boxes"] * factors}
    if "masks" in target:
        target["masks"] = resized_masks(target["masks"], height, width)
    return image.resize((width, height), Image.Resampling.BILINEAR), target


def resized_masks(masks: Tensor, height: int, width: int) -> Tensor:
    """Masks (N, H, W) of 0 and 1 at another size, whose pixels are those nearest to their centres."""
    if not len(masks):
        return masks.new_zeros(0, height, width)
    return F.interpolate(masks[:, None], size=(height, width), mode="nearest-exact")[:, 0]


def mirrored(pixels: Pixels, target: Target) -> tuple[Pixels, Target]:
    """All seen in a mirror."""
    boxes = target["boxes"].clone()
    boxes[:, [0, 2]] = pixels.shape[-1] - target["boxes"][:, [2, 0]]
    target = {**target, "boxes": boxes}
    if "masks" in target:
        target["masks"] = target["masks"].flip(-1)
    return pixels.flip(-1), target


def cropped(pixels: Pixels, target: Target, top: int, left: int, height: int, width: int) -> tuple[Pixels, Target]:
    """A window, filled with black where it reaches beyond the image; boxes and masks of what is left.

    Where there are masks, boxes are drawn anew around what is left of them.
    """
    part = pixels[:, top : top + height, left : left + width]
    beyond = (0, width - part.shape[2], 0, height - part.shape[1])
    window = {**target, "boxes": target["boxes"] - torch.tensor([left, top, left, top])}
    window["boxes"] = clipped(window["boxes"], part.shape[1], part.shape[2])
    if "masks" in target:
        masks = target["masks"][:, top : top + height, left : left + width]
        seen = masks.flatten(1).bool().any(1)
        window = {key: value[seen] for key, value in {**window, "masks": F.pad(masks, beyond)}.items()}
        if seen.any():
            window["boxes"] = masks_to_boxes(window["masks"]) + torch.tensor([0.0, 0.0, 1.0, 1.0])
    keep = ((window["boxes"][:, 2:] - window["boxes"][:, :2]) >= LEAST).all(1)
    return F.pad(part, beyond), {key: value[keep] for key, value in window.items()}


class TrainTransform:
    """An image and its target -> uint8 (3, h, w) and the target of it."""

    def __init__(self, data: Data, augment: Augment) -> None:
        self.data, self.augment = data, augment

    def __call__(self, image: Image.Image, target: Target, rng: random.Random) -> tuple[Pixels, Target]:
        augment = self.augment
        if augment.resize == "jitter":
            pixels, target = self._jitter(image, target, rng)
        else:
            short = rng.choice(augment.sizes) if augment.resize == "multiscale" else self.data.short
            image, target = resize(image, target, *fitted(image.height, image.width, short, self.data.long))
            pixels = to_pixels(image)
        if rng.random() < augment.hflip:
            pixels, target = mirrored(pixels, target)
        return pixels, target

    def _jitter(self, image: Image.Image, target: Target, rng: random.Random) -> tuple[Pixels, Target]:
        """Large-scale jitter: a random scale of the image as it fits into the crop, and a random window of it."""
        height, width = pair(self.augment.crop)
        factor = rng.uniform(*self.augment.scale) * min(height / image.height, width / image.width)
        sides = (max(1, round(image.height * factor)), max(1, round(image.width * factor)))
        image, target = resize(image, target, *sides)
        top = rng.randint(0, max(image.height - height, 0))
        left = rng.randint(0, max(image.width - width, 0))
        return cropped(to_pixels(image), target, top, left, height, width)


class EvalTransform:
    """An image at its evaluation size, uint8 (3, h, w)."""

    def __init__(self, short: int, long: int) -> None:
        self.short, self.long = short, long

    def __call__(self, image: Image.Image) -> Pixels:
        height, width = fitted(image.height, image.width, self.short, self.long)
        if (height, width) != (image.height, image.width):
            image = image.resize((width, height), Image.Resampling.BILINEAR)
        return to_pixels(image)
