"""Operations on the colors of batches of pixels from 0 to 1, one of them for each image, as RandAugment has them.

Strengths are from -1 to 1; where a sign makes no sense the amount counts.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

GREY = (0.299, 0.587, 0.114)
ENHANCEMENT = 0.9  # a factor from 1 - 0.9 to 1 + 0.9 at full strength


def jitter(pixels: Tensor, uniform: Tensor, amount: float) -> Tensor:
    """Brightness, contrast and saturation by factors from 1 - amount to 1 + amount; `uniform` is (B, 3)."""
    factors = 1 + amount * (2 * uniform - 1)
    factors = factors.clamp(min=0).view(-1, 3, 1, 1, 1)
    pixels = (pixels * factors[:, 0]).clamp(0, 1)
    pixels = torch.lerp(_grey(pixels).mean((2, 3), keepdim=True), pixels, factors[:, 1]).clamp(0, 1)
    return torch.lerp(_grey(pixels), pixels, factors[:, 2]).clamp(0, 1)


def apply(pixels: Tensor, operations: Tensor, levels: Tensor) -> Tensor:
    """The operation `operations[i]` of strength `levels[i]` on image i; numbers outside of the list do nothing."""
    strength = levels.view(-1, 1, 1, 1)
    out = pixels
    for number, operation in enumerate(OPERATIONS):
        out = torch.where((operations == number).view(-1, 1, 1, 1), operation(pixels, strength), out)
    return out.clamp(0, 1)


def _grey(pixels: Tensor) -> Tensor:
    if pixels.shape[1] != 3:
        return pixels.mean(1, keepdim=True)
    # Numbers, not a tensor: one made on a GPU would stop the host until all that came before it is done.
    red, green, blue = pixels.split(1, 1)
    return (red * GREY[0]).add(green, alpha=GREY[1]).add(blue, alpha=GREY[2])


def _auto_contrast(pixels: Tensor, strength: Tensor) -> Tensor:
    low, high = pixels.amin((2, 3), keepdim=True), pixels.amax((2, 3), keepdim=True)
    return torch.where(high > low, (pixels - low) / (high - low).clamp(min=1e-6), pixels)


def _equalize(pixels: Tensor, strength: Tensor) -> Tensor:
    """Every channel through the cumulative histogram of its 256 values."""
    shape = pixels.shape
    values = (pixels * 255).round().long().clamp(0, 255).flatten(2).flatten(0, 1)  # (B * C, H * W)
    counts = torch.zeros(values.shape[0], 256, dtype=torch.long, device=pixels.device)
    counts.scatter_add_(1, values, torch.ones_like(values))
    total = counts.cumsum(1)
    first = total.gather(1, values.amin(1, keepdim=True))
    table = (total - first).float() / (values.shape[1] - first).clamp(min=1)
    return torch.where(first < values.shape[1], table.gather(1, values), values / 255).view(shape)


def _invert(pixels: Tensor, strength: Tensor) -> Tensor:
    return 1 - pixels


def _posterize(pixels: Tensor, strength: Tensor) -> Tensor:
    bits = (4 - (strength.abs() * 4).floor()).clamp(min=0) + 4 * (strength.abs() < 0.05)
    step = 2.0 ** (8 - bits)
    return ((pixels * 255 / step).floor() * step / 255).clamp(0, 1)


def _solarize(pixels: Tensor, strength: Tensor) -> Tensor:
    return torch.where(pixels >= 1 - strength.abs(), 1 - pixels, pixels)


def _solarize_add(pixels: Tensor, strength: Tensor) -> Tensor:
    return torch.where(pixels < 0.5, (pixels + strength.abs() * 110 / 255).clamp(0, 1), pixels)


def _saturate(pixels: Tensor, strength: Tensor) -> Tensor:
    return torch.lerp(_grey(pixels), pixels, 1 + ENHANCEMENT * strength)


def _contrast(pixels: Tensor, strength: Tensor) -> Tensor:
    return torch.lerp(_grey(pixels).mean((2, 3), keepdim=True), pixels, 1 + ENHANCEMENT * strength)


def _brighten(pixels: Tensor, strength: Tensor) -> Tensor:
    return pixels * (1 + ENHANCEMENT * strength)


def _sharpen(pixels: Tensor, strength: Tensor) -> Tensor:
    padded = F.pad(pixels, (1, 1, 1, 1), mode="replicate")
    smooth = (F.avg_pool2d(padded, 3, 1) * 9 + 4 * pixels) / 13
    return torch.lerp(smooth, pixels, 1 + ENHANCEMENT * strength)


OPERATIONS: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    _auto_contrast,
    _equalize,
    _invert,
    _posterize,
    _solarize,
    _solarize_add,
    _saturate,
    _contrast,
    _brighten,
    _sharpen,
)
