"""Augmentation of whole batches on their device, for preloaded data: crop, flip, colors, RandAugment.

Everything is a function of uniform numbers, COLUMNS for each image, so that a batch needs one small copy to the
device and no decision in Python. The crop, the flips and the geometric operations of RandAugment are one affine map,
sampled once. Shape letter: B images.
"""

import math
import re
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor
from torch.nn import functional as F

from sightline.tasks.classification import colour
from sightline.tasks.classification.config import Augment
from sightline.util.errors import InputError

LAYERS = 4  # operations in a row, at most
PARTS = (6, 3, 4 * LAYERS)  # numbers for crop and flips, for the jitter of colors, for RandAugment
COLUMNS = sum(PARTS)
GEOMETRIC = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
OPERATIONS = len(GEOMETRIC) + len(colour.OPERATIONS)
ROTATION, SHEAR, TRANSLATION = 30.0, 0.3, 0.45  # degrees, slope, share of the side; at magnitude 10
SLACK = {"center": 0.0, "padded": 1 / 4}  # of a crop of the whole image, in half sides: an eighth of the side


@dataclass(frozen=True)
class RandAugment:
    """`layers` operations in a row, each with probability `p`, of strength `magnitude` out of 10 give or take `std`."""

    magnitude: float = 9.0
    std: float = 0.0
    layers: int = 2
    p: float = 0.5

    @classmethod
    def parse(cls, text: str) -> "RandAugment":
        """timm's notation, such as rand-m9-mstd0.5-inc1-n2-p0.5; the increasing forms are always used."""
        parts = {key: float(value) for key, value in re.findall(r"-([a-z]+)(\d*\.?\d+)", text)}
        layers = int(parts.get("n", 2))
        if not text.startswith("rand") or parts.keys() - {"m", "mstd", "n", "p", "inc"} or layers > LAYERS:
            raise InputError(
                f"augment.auto: {text!r} is not available with data.preload; give rand-mM-mstdS-nN-pP with N up to "
                f"{LAYERS}, or leave data.preload out"
            )
        return cls(min(parts.get("m", 9), 10), parts.get("mstd", 0), layers, parts.get("p", 0.5))

    def draw(self, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """Which operation every layer applies, -1 for none, and its strength with a sign, both (B, layers)."""
        which, chosen, level, sign = uniform.unflatten(1, (LAYERS, 4))[:, : self.layers].unbind(-1)
        operations = (which * OPERATIONS).long().clamp(max=OPERATIONS - 1)
        normal = math.sqrt(2) * torch.erfinv((2 * level - 1).clamp(-0.999, 0.999))
        levels = ((self.magnitude + self.std * normal) / 10).clamp(0, 1)
        return torch.where(chosen < self.p, operations, -1), torch.where(sign < 0.5, -levels, levels)


class BatchAugment:
    """uint8 (B, C, H, W) -> float pixels from 0 to 1, (B, C, height, width).

    Images may be smaller than (H, W): they lie in the upper left corner, with `fill` next to them.

    Args:
        augment: what to do; mixing and erasing come later.
        size: (height, width) that comes out.
        fill: mean color, for what an operation brings in from outside of the image.
    """

    def __init__(self, augment: Augment, size: tuple[int, int], fill: tuple[float, ...], device: torch.device) -> None:
        self.augment = augment
        self.size = size
        self.fill = torch.tensor(fill, device=device).view(1, -1, 1, 1)
        self.rand = RandAugment.parse(augment.auto) if augment.auto else None

    def __call__(self, images: Tensor, shares: Tensor, uniform: Tensor) -> Tensor:
        """`shares`: (B, 2), of H and W that each image takes. `uniform`: (B, COLUMNS) numbers from 0 to 1."""
        place, tint, policy = uniform.split(PARTS, 1)
        theta = self._crop(place, shares, images.shape[-2], images.shape[-1])
        if self.rand is not None:
            operations, levels = self.rand.draw(policy)
            theta = torch.bmm(theta, geometry(operations, levels))
        centred = images.float() / 255 - self.fill
        grid = F.affine_grid(theta[:, :2], [len(images), images.shape[1], *self.size], align_corners=False)
        mode = self.augment.resample
        pixels = (F.grid_sample(centred, grid, mode, align_corners=False) + self.fill).clamp(0, 1)
        if self.rand is not None:
            for layer in range(self.rand.layers):
                pixels = colour.apply(pixels, operations[:, layer] - len(GEOMETRIC), levels[:, layer])
        elif self.augment.color_jitter:
            pixels = colour.jitter(pixels, tint, self.augment.color_jitter)
        return pixels

    def _crop(self, uniform: Tensor, shares: Tensor, full_height: int, full_width: int) -> Tensor:
        """The affine map (B, 3, 3) from output to input coordinates, both from -1 to 1, of crop and flips."""
        config, (lower, right) = self.augment, shares.unbind(1)
        height, width = full_height * lower, full_width * right
        area, ratio, down, across, mirror, turn = uniform.unbind(1)
        tall = wide = torch.ones_like(area)
        if config.crop == "resized":
            (small, large), (narrow, broad) = config.scale, map(math.log, config.ratio)
            area = (small + area * (large - small)) * height * width
            ratio = torch.exp(narrow + ratio * (broad - narrow))
            tall, wide = ((area / ratio).sqrt() / height).clamp(max=1), ((area * ratio).sqrt() / width).clamp(max=1)
        down, across = (
            (2 * shift - 1) * SLACK.get(config.crop, 1 - side) for shift, side in ((down, tall), (across, wide))
        )
        zero = torch.zeros_like(area)
        wide, tall = torch.where(mirror < config.hflip, -wide, wide), torch.where(turn < config.vflip, -tall, tall)
        return _affine(wide * right, zero, (across + 1) * right - 1, zero, tall * lower, (down + 1) * lower - 1)


def geometry(operations: Tensor, levels: Tensor) -> Tensor:
    """The geometric operations of all layers, (B, layers), as one affine map, (B, 3, 3)."""
    numbers = torch.arange(len(GEOMETRIC), device=levels.device)
    amounts = (operations.unsqueeze(-1) == numbers) * levels.unsqueeze(-1)  # B layers 5
    turn, lean, fall, across, down = amounts.unbind(-1)
    angle = turn * math.radians(ROTATION)
    cos, sin = angle.cos(), angle.sin()
    shift = 2 * TRANSLATION
    steps = _affine(cos, lean * SHEAR - sin, across * shift, sin + fall * SHEAR, cos, down * shift)
    return reduce(torch.bmm, steps.unbind(1))


def _affine(*rows: Tensor) -> Tensor:
    """The six upper entries (...) -> (..., 3, 3)."""
    zero, one = torch.zeros_like(rows[0]), torch.ones_like(rows[0])
    return torch.stack([*rows, zero, zero, one], -1).unflatten(-1, (3, 3))
