"""What the transforms of segmentation and detection share.

The geometry is torchvision's (`transforms.v2.functional` on tv_tensors), the random numbers are not: the transform
classes of v2 draw from torch's global generator, and the augmentation of an image must depend on its own seed alone.
"""

import random
from collections.abc import Sequence
from functools import cache
from typing import TypeVar

import torch
from PIL import Image
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as F

from sightline.data.images import check_pixels

Size = tuple[int, int]  # height, width
MAX_INPUT = 1 << 22  # pixels that are predicted at once, of models that keep the size of an image
T = TypeVar("T")


def pair(size: int | Size) -> Size:
    """(height, width) of a size given as one number or two."""
    return (size, size) if isinstance(size, int) else size


def fitted(height: int, width: int, short: int | None, long: int) -> Size:
    """The size whose short side is `short`, unless the long side would exceed `long`; None keeps the size.

    `v2.RandomShortestSize` cuts fractions off where this rounds: 480x640 would become 800x1066, not 800x1067.
    """
    if short is None:
        return height, width
    return scaled(height, width, min(short / min(height, width), long / max(height, width)))


def scaled(height: int, width: int, factor: float) -> Size:
    """A size times a factor, at least one pixel."""
    return max(1, round(height * factor)), max(1, round(width * factor))


def to_pixels(image: Image.Image, size: Size) -> tv_tensors.Image:
    """An RGB image at `size` as uint8 (3, height, width), resized by Pillow."""
    if (image.height, image.width) != size:
        check_pixels(*size)
        image = F.resize(image, list(size), InterpolationMode.BILINEAR)
    return F.to_image(image)


def resize_masks(masks: Tensor, size: Size) -> tv_tensors.Mask:
    """Masks (N, H, W) at `size`; each pixel takes the value at its center.

    The kernel of images, because that of masks ignores NEAREST_EXACT before torchvision 0.29 and is half a pixel off.
    """
    return tv_tensors.Mask(F.resize_image(masks, list(size), InterpolationMode.NEAREST_EXACT))


def plain(tensor: Tensor) -> Tensor:
    """Without the subclass, which loader processes would copy instead of sharing."""
    return tensor.as_subclass(Tensor).contiguous()


def normalize(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """uint8 (..., 3, H, W) -> float with the mean and standard deviation of each channel."""
    centre, spread = (_channels(tuple(values), images.device) for values in (mean, std))
    return (images.float() / 255 - centre) / spread


@cache
def _channels(values: tuple[float, ...], device: torch.device) -> Tensor:
    """A value per channel; kept, since the host waits for the device when it copies one."""
    return torch.tensor(values, device=device).view(-1, 1, 1)


class EvalTransform:
    """PIL image -> uint8 (3, h, w) at its evaluation size."""

    def __init__(self, short: int | None, long: int) -> None:
        self.short, self.long = short, long

    def __call__(self, image: Image.Image) -> Tensor:
        return plain(to_pixels(image, fitted(image.height, image.width, self.short, self.long)))

    def beside(self, image: Image.Image, truth: T, rng: random.Random) -> tuple[Tensor, T]:
        """An image with the truth as it is."""
        return self(image), truth


class InferenceTransform(EvalTransform):
    """PIL image -> float (3, h, w), resized and normalized as a model expects it, with at most MAX_INPUT pixels."""

    def __init__(self, short: int | None, long: int, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__(short, long)
        self.mean, self.std = mean, std

    def __call__(self, image: Image.Image) -> Tensor:
        height, width = fitted(image.height, image.width, self.short, self.long)
        if self.short is None and height * width > MAX_INPUT:
            height, width = scaled(height, width, (MAX_INPUT / (height * width)) ** 0.5)
        return normalize(plain(to_pixels(image, (height, width))), self.mean, self.std)
