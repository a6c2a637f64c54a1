"""Operations on the colors of batches of pixels from 0 to 1, one of them for each image, as RandAugment has them.

torchvision has them with one strength per call; here every image of a batch has its own, (B, 1, 1, 1).
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.transforms.v2.functional import autocontrast_image, equalize_image, rgb_to_grayscale_image

ENHANCEMENT = 0.9  # a factor from 1 - 0.9 to 1 + 0.9 at full strength
Operation = Callable[[Tensor, Tensor], Tensor]


def jitter(pixels: Tensor, uniform: Tensor, amount: float) -> Tensor:
    """Brightness, contrast and saturation by factors from 1 - amount to 1 + amount; `uniform` is (B, 3)."""
    factors = (1 + amount * (2 * uniform - 1)).clamp(min=0).view(-1, 3, 1, 1, 1).unbind(1)
    for change, factor in zip((_brightness, _contrast, _saturation), factors, strict=True):
        pixels = change(pixels, factor).clamp(0, 1)
    return pixels


def apply(pixels: Tensor, operations: Tensor, levels: Tensor) -> Tensor:
    """The operation `operations[i]` of strength `levels[i]` on image i; numbers outside of the list do nothing.

    Strengths are from -1 to 1; where a sign makes no sense the amount counts.
    """
    strength = levels.view(-1, 1, 1, 1)
    out = pixels
    for number, operation in enumerate(OPERATIONS):
        out = torch.where((operations == number).view(-1, 1, 1, 1), operation(pixels, strength), out)
    return out.clamp(0, 1)


def _brightness(pixels: Tensor, factor: Tensor) -> Tensor:
    return pixels * factor


def _contrast(pixels: Tensor, factor: Tensor) -> Tensor:
    return torch.lerp(rgb_to_grayscale_image(pixels).mean((2, 3), keepdim=True), pixels, factor)


def _saturation(pixels: Tensor, factor: Tensor) -> Tensor:
    return torch.lerp(rgb_to_grayscale_image(pixels), pixels, factor)


def _sharpness(pixels: Tensor, factor: Tensor) -> Tensor:
    padded = F.pad(pixels, (1, 1, 1, 1), mode="replicate")
    smooth = (F.avg_pool2d(padded, 3, 1) * 9 + 4 * pixels) / 13
    return torch.lerp(smooth, pixels, factor)


def _enhance(change: Operation, pixels: Tensor, strength: Tensor) -> Tensor:
    return change(pixels, 1 + ENHANCEMENT * strength)


def _posterize(pixels: Tensor, strength: Tensor) -> Tensor:
    bits = (4 - (strength.abs() * 4).floor()).clamp(min=0) + 4 * (strength.abs() < 0.05)
    step = 2.0 ** (8 - bits)
    return ((pixels * 255 / step).floor() * step / 255).clamp(0, 1)


def _solarize(pixels: Tensor, strength: Tensor) -> Tensor:
    return torch.where(pixels >= 1 - strength.abs(), 1 - pixels, pixels)


def _solarize_add(pixels: Tensor, strength: Tensor) -> Tensor:
    return torch.where(pixels < 0.5, (pixels + strength.abs() * 110 / 255).clamp(0, 1), pixels)


OPERATIONS: tuple[Operation, ...] = (
    lambda pixels, _: autocontrast_image(pixels),
    lambda pixels, _: equalize_image(pixels),
    lambda pixels, _: 1 - pixels,
    _posterize,
    _solarize,
    _solarize_add,
    *(partial(_enhance, change) for change in (_saturation, _contrast, _brightness, _sharpness)),
)
