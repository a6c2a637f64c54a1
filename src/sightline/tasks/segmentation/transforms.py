"""What happens to an image and its mask, always to both: scale, crop, mirror, colours."""

import random

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from sightline.tasks.segmentation.config import Augment, Data
from sightline.tasks.segmentation.data import IGNORE

CROP_TRIES = 10
BRIGHTNESS, CONTRAST, HUE = 0.125, 0.5, 0.1  # most that they change; saturation as contrast

Pair = tuple[Image.Image, np.ndarray]


def pair(size: int | tuple[int, int]) -> tuple[int, int]:
    """(height, width) of a size given as one number or two."""
    return (size, size) if isinstance(size, int) else size


def fitted(height: int, width: int, short: int | None, long: int) -> tuple[int, int]:
    """The size at which the short side is `short`, unless the long one would exceed `long`; None keeps the size."""
    if short is None:
        return height, width
    factor = min(short / min(height, width), long / max(height, width))
    return max(1, round(height * factor)), max(1, round(width * factor))


def resize(image: Image.Image, mask: np.ndarray, height: int, width: int) -> Pair:
    """Both at another size; classes are never mixed."""
    if (image.height, image.width) == (height, width):
        return image, mask
    small = Image.fromarray(mask.astype(np.int32)).resize((width, height), Image.Resampling.NEAREST)
    return image.resize((width, height), Image.Resampling.BILINEAR), np.asarray(small).astype(np.int16)


def to_tensors(image: Image.Image, mask: np.ndarray) -> tuple[Tensor, Tensor]:
    """uint8 (3, H, W) and int16 (H, W)."""
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
    return pixels, torch.from_numpy(np.array(mask))


class TrainTransform:
    """An image and its mask -> a crop of data.size, uint8 (3, h, w) and int16 (h, w).

    Where the image is smaller than the crop it is filled with the mean colour, and its mask with IGNORE.
    """

    def __init__(self, data: Data, augment: Augment) -> None:
        self.data, self.augment = data, augment
        self.height, self.width = pair(data.size)
        self.fill = tuple(round(255 * value) for value in data.mean)

    def __call__(self, image: Image.Image, mask: np.ndarray, rng: random.Random) -> tuple[Tensor, Tensor]:
        height, width = fitted(image.height, image.width, self.data.short, self.data.long)
        factor = rng.uniform(*self.augment.scale)
        image, mask = resize(image, mask, max(1, round(height * factor)), max(1, round(width * factor)))
        image, mask = self._crop(image, mask, rng)
        pixels, classes = to_tensors(image, mask)
        if rng.random() < self.augment.hflip:
            pixels, classes = pixels.flip(-1), classes.flip(-1)
        if self.augment.colour:
            pixels = recolour(pixels, rng)
        return pixels, classes

    def _crop(self, image: Image.Image, mask: np.ndarray, rng: random.Random) -> Pair:
        """A window of which no class has more than its share, if one is found."""
        for _ in range(CROP_TRIES):
            top = rng.randint(0, max(mask.shape[0] - self.height, 0))
            left = rng.randint(0, max(mask.shape[1] - self.width, 0))
            part = mask[top : top + self.height, left : left + self.width]
            counts = np.bincount(part[part != IGNORE].astype(np.int64))
            if len(counts) and counts.max() <= self.augment.most_of_one * counts.sum():
                break
        window = image.crop((left, top, left + part.shape[1], top + part.shape[0]))
        if part.shape == (self.height, self.width):
            return window, part
        canvas = Image.new("RGB", (self.width, self.height), self.fill)
        canvas.paste(window, (0, 0))
        filled = np.full((self.height, self.width), IGNORE, dtype=np.int16)
        filled[: part.shape[0], : part.shape[1]] = part
        return canvas, filled


def recolour(pixels: Tensor, rng: random.Random) -> Tensor:
    """Brightness, contrast, saturation and hue, each with probability a half; contrast first or last."""
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


class EvalTransform:
    """An image at its evaluation size, uint8 (3, h, w), and its mask as in the file, int16 (H, W)."""

    def __init__(self, data: Data) -> None:
        self.data = data

    def __call__(self, image: Image.Image, mask: np.ndarray) -> tuple[Tensor, Tensor]:
        height, width = fitted(image.height, image.width, self.data.short, self.data.long)
        if (height, width) != (image.height, image.width):
            image = image.resize((width, height), Image.Resampling.BILINEAR)
        return to_tensors(image, mask)
