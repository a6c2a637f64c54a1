"""Augmentation of an image together with its mask: scale, crop, horizontal flip, colors."""

import random

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from sightline.data.images import check_pixels
from sightline.tasks.dense.transforms import Size, fitted, pair, plain, scaled
from sightline.tasks.segmentation.config import Augment, Data
from sightline.tasks.segmentation.data import IGNORE

CROP_TRIES = 10
BRIGHTNESS, CONTRAST, HUE = 0.125, 0.5, 0.1  # largest changes; saturation as contrast


class TrainTransform:
    """An image and its mask -> a crop of data.size, uint8 (3, h, w) and int16 (h, w).

    If the image is smaller than the crop, it is padded with the mean color and its mask with IGNORE. Only the crop is
    scaled: its pixels are those of the whole image at that scale.
    """

    def __init__(self, data: Data, augment: Augment) -> None:
        self.data, self.augment = data, augment
        self.height, self.width = pair(data.size)
        self.fill = tuple(round(255 * value) for value in data.mean)

    def __call__(self, image: Image.Image, mask: Tensor, rng: random.Random) -> tuple[Tensor, Tensor]:
        height, width = fitted(image.height, image.width, self.data.short, self.data.long)
        size = scaled(height, width, rng.uniform(*self.augment.scale))
        check_pixels(*size)
        top, left, window = self._choose(mask.numpy(), size, rng)
        classes = np.full((self.height, self.width), IGNORE, np.int16)
        classes[: window.shape[0], : window.shape[1]] = window
        pixels = self._crop(image, size, top, left)
        if rng.random() < self.augment.hflip:
            pixels, classes = F.horizontal_flip(pixels), classes[:, ::-1]
        if self.augment.colour:
            pixels = recolour(pixels, rng)
        return plain(F.to_image(pixels)), torch.from_numpy(np.ascontiguousarray(classes))

    def _choose(self, mask: np.ndarray, size: Size, rng: random.Random) -> tuple[int, int, np.ndarray]:
        """Where the crop begins in the image at `size`, and its mask: no class has more than its share, if possible.

        Each pixel of the mask takes the value at its center.
        """
        rows, columns = (
            np.minimum((np.arange(many) + 0.5) * (old / many), old - 1).astype(np.intp)
            for old, many in zip(mask.shape, size, strict=True)
        )
        for _ in range(CROP_TRIES):
            top = rng.randint(0, max(size[0] - self.height, 0))
            left = rng.randint(0, max(size[1] - self.width, 0))
            window = mask[rows[top : top + self.height, None], columns[left : left + self.width]]
            counts = np.bincount(window.ravel() - IGNORE)[1:]
            if counts.any() and counts.max() <= self.augment.most_of_one * counts.sum():
                break
        return top, left, window

    def _crop(self, image: Image.Image, size: Size, top: int, left: int) -> Image.Image:
        """The crop of the image at `size`."""
        height, width = min(self.height, size[0]), min(self.width, size[1])
        high, wide = image.height / size[0], image.width / size[1]
        right, bottom = min((left + width) * wide, image.width), min((top + height) * high, image.height)
        box = (left * wide, top * high, right, bottom)
        window = image.resize((width, height), Image.Resampling.BILINEAR, box)
        if (width, height) == (self.width, self.height):
            return window
        crop = Image.new("RGB", (self.width, self.height), self.fill)
        crop.paste(window)
        return crop


def recolour(image: Image.Image, rng: random.Random) -> Image.Image:
    """Brightness, contrast, saturation and hue, each with probability 0.5; contrast first or last.

    Not `v2.RandomPhotometricDistort`, which scales the brightness instead of shifting it and permutes channels: the
    published recipes do neither.
    """
    late = rng.random() < 0.5
    contrast = rng.uniform(1 - CONTRAST, 1 + CONTRAST) if rng.random() < 0.5 else None
    if rng.random() < 0.5:
        shift = rng.uniform(-BRIGHTNESS, BRIGHTNESS) * 255
        image = image.point([min(max(int(value + shift), 0), 255) for value in range(256)] * 3)
    if contrast is not None and not late:
        image = F.adjust_contrast(image, contrast)
    if rng.random() < 0.5:
        image = F.adjust_saturation(image, rng.uniform(1 - CONTRAST, 1 + CONTRAST))
    if rng.random() < 0.5:
        image = F.adjust_hue(image, rng.uniform(-HUE, HUE))
    if contrast is not None and late:
        image = F.adjust_contrast(image, contrast)
    return image
