"""Augmentation of an image together with its mask: scale, crop, horizontal flip, colors."""

import random

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from sightline.tasks.dense.transforms import fitted, pair, plain, resize_masks, scaled, to_pixels
from sightline.tasks.segmentation.config import Augment, Data
from sightline.tasks.segmentation.data import IGNORE

CROP_TRIES = 10
BRIGHTNESS, CONTRAST, HUE = 0.125, 0.5, 0.1  # largest changes; saturation as contrast


class TrainTransform:
    """An image and its mask -> a crop of data.size, uint8 (3, h, w) and int16 (h, w).

    If the image is smaller than the crop, it is padded with the mean color and its mask with IGNORE.
    """

    def __init__(self, data: Data, augment: Augment) -> None:
        self.data, self.augment = data, augment
        self.height, self.width = pair(data.size)
        self.fill = [round(255 * value) for value in data.mean]

    def __call__(self, image: Image.Image, mask: Tensor, rng: random.Random) -> tuple[Tensor, Tensor]:
        height, width = fitted(image.height, image.width, self.data.short, self.data.long)
        size = scaled(height, width, rng.uniform(*self.augment.scale))
        pixels, classes = to_pixels(image, size), resize_masks(mask[None], size)
        pixels, classes = self._crop(pixels, classes, rng)
        if rng.random() < self.augment.hflip:
            pixels, classes = F.horizontal_flip(pixels), F.horizontal_flip(classes)
        if self.augment.colour:
            pixels = recolour(pixels, rng)
        return plain(pixels), plain(classes[0])

    def _crop(self, pixels: Tensor, classes: Tensor, rng: random.Random) -> tuple[Tensor, Tensor]:
        """A window in which no class has more than its share, if one is found."""
        height, width = classes.shape[-2:]
        beyond = [0, 0, max(self.width - width, 0), max(self.height - height, 0)]
        pixels, classes = F.pad(pixels, beyond, fill=self.fill), F.pad(classes, beyond, fill=IGNORE)
        for _ in range(CROP_TRIES):
            top = rng.randint(0, max(height - self.height, 0))
            left = rng.randint(0, max(width - self.width, 0))
            window = F.crop(classes, top, left, self.height, self.width)
            counts = torch.bincount(window[window != IGNORE].long())
            if len(counts) and counts.max() <= self.augment.most_of_one * counts.sum():
                break
        return F.crop(pixels, top, left, self.height, self.width), window


def recolour(pixels: Tensor, rng: random.Random) -> Tensor:
    """Brightness, contrast, saturation and hue, each with probability 0.5; contrast first or last.

    Not `v2.RandomPhotometricDistort`, which scales the brightness instead of shifting it and permutes channels: the
    published recipes do neither.
    """
    late = rng.random() < 0.5
    contrast = rng.uniform(1 - CONTRAST, 1 + CONTRAST) if rng.random() < 0.5 else None
    if rng.random() < 0.5:
        shift = rng.uniform(-BRIGHTNESS, BRIGHTNESS) * 255
        pixels = (pixels.float() + shift).clamp(0, 255).byte()
    if contrast is not None and not late:
        pixels = F.adjust_contrast(pixels, contrast)
    if rng.random() < 0.5:
        pixels = F.adjust_saturation(pixels, rng.uniform(1 - CONTRAST, 1 + CONTRAST))
    if rng.random() < 0.5:
        pixels = F.adjust_hue(pixels, rng.uniform(-HUE, HUE))
    if contrast is not None and late:
        pixels = F.adjust_contrast(pixels, contrast)
    return pixels
