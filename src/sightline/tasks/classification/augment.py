"""Augmentation of whole batches on their device, for preloaded data: crop, flip, colors, RandAugment.

Everything is a function of uniform numbers, COLUMNS for each image, so that a batch needs one small copy to the
device and no decision in Python. The crop, the flip and the geometric operations of RandAugment are one affine map,
sampled once.
"""

import math
import re
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from sightline.tasks.classification import colour
from sightline.tasks.classification.config import Augment
from sightline.util.errors import InputError

LAYERS = 4  # operations in a row, at most
COLUMNS = 8 + 4 * LAYERS
GEOMETRIC = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
ROTATION, SHEAR, TRANSLATION = 30.0, 0.3, 0.45  # degrees, slope, share of the side; at magnitude 10


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
        parts = dict(re.findall(r"-([a-z]+)(\d*\.?\d+)", text))
        known = {"m", "mstd", "n", "p", "inc"}
        if not text.startswith("rand") or parts.keys() - known or int(float(parts.get("n", 2))) > LAYERS:
            raise InputError(
                f"augment.auto: {text!r} is not available with data.preload; give rand-mM-mstdS-nN-pP with N up to "
                f"{LAYERS}, or leave data.preload out"
            )
        return cls(
            min(float(parts.get("m", 9)), 10.0),
            float(parts.get("mstd", 0)),
            int(float(parts.get("n", 2))),
            float(parts.get("p", 0.5)),
        )


class BatchAugment:
    """uint8 (B, C, H, W) -> float pixels from 0 to 1, (B, C, height, width).

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

    def __call__(self, images: Tensor, uniform: Tensor) -> Tensor:
        """`uniform`: (B, COLUMNS) numbers from 0 to 1."""
        crop = uniform[:, :8]
        theta = self._crop(crop, images.shape[-2], images.shape[-1])
        if self.rand is not None:
            operations, levels = self._operations(self.rand, uniform[:, 8:].reshape(-1, LAYERS, 4))
            theta = torch.bmm(theta, geometry(operations, levels))
        centred = images.float() / 255 - self.fill
        grid = F.affine_grid(theta[:, :2], [len(images), images.shape[1], *self.size], align_corners=False)
        pixels = (F.grid_sample(centred, grid, align_corners=False) + self.fill).clamp(0, 1)
        if self.rand is not None:
            for layer in range(self.rand.layers):
                pixels = colour.apply(pixels, operations[:, layer] - len(GEOMETRIC), levels[:, layer])
        elif self.augment.color_jitter:
            pixels = colour.jitter(pixels, crop[:, 5:8], self.augment.color_jitter)
        return pixels

    def _crop(self, uniform: Tensor, height: int, width: int) -> Tensor:
        """The affine map (B, 3, 3) from output to input coordinates, both from -1 to 1, of crop and flips."""
        tall, wide, down, across = self._window(uniform, height, width)
        flip = 1 - 2 * (uniform[:, 4] < self.augment.hflip).float()
        # One number decides both flips: its upper half, stretched, is as uniform as the whole.
        turn = 1 - 2 * ((uniform[:, 4] * 1024).frac() < self.augment.vflip).float()
        zero = torch.zeros_like(wide)
        return _affine(wide * flip, zero, across, zero, tall * turn, down)

    def _window(self, uniform: Tensor, height: int, width: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Half height and width, and center, of the part of the image that is kept, in units of half its sides."""
        area, ratio, down, across = uniform[:, :4].unbind(1)
        if self.augment.crop == "center":
            one, zero = torch.ones_like(area), torch.zeros_like(area)
            return one, one, zero, zero
        if self.augment.crop == "padded":
            one = torch.ones_like(area)
            return one, one, (2 * down - 1) / 4, (2 * across - 1) / 4  # an eighth of the side
        low, high = self.augment.scale
        narrow, broad = (math.log(limit) for limit in self.augment.ratio)
        area = (low + area * (high - low)) * height * width
        ratio = torch.exp(narrow + ratio * (broad - narrow))
        wide = ((area * ratio).sqrt() / width).clamp(max=1)
        tall = ((area / ratio).sqrt() / height).clamp(max=1)
        return tall, wide, (2 * down - 1) * (1 - tall), (2 * across - 1) * (1 - wide)

    @staticmethod
    def _operations(rand: RandAugment, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """Which operation every layer applies, -1 for none, and its strength with a sign, both (B, rand.layers)."""
        which, chosen, level, sign = uniform[:, : rand.layers].unbind(-1)
        count = len(GEOMETRIC) + len(colour.OPERATIONS)
        operations = (which * count).long().clamp(max=count - 1)
        operations = torch.where(chosen < rand.p, operations, -1)
        normal = math.sqrt(2) * torch.erfinv((2 * level - 1).clamp(-0.999, 0.999))
        levels = ((rand.magnitude + rand.std * normal) / 10).clamp(0, 1)
        return operations, levels * (1 - 2 * (sign < 0.5).float())


def geometry(operations: Tensor, levels: Tensor) -> Tensor:
    """The geometric operations of all layers, (B, layers), as one affine map, (B, 3, 3)."""
    numbers = torch.arange(len(GEOMETRIC), device=levels.device)
    amounts = (operations.unsqueeze(-1) == numbers) * levels.unsqueeze(-1)  # B layers 5
    turn, lean, fall, across, down = amounts.unbind(-1)
    angle = turn * math.radians(ROTATION)
    cos, sin = angle.cos(), angle.sin()
    shift = 2 * TRANSLATION
    steps = _affine(cos, lean * SHEAR - sin, across * shift, sin + fall * SHEAR, cos, down * shift)
    theta = steps[:, 0]
    for layer in range(1, operations.shape[1]):
        theta = torch.bmm(theta, steps[:, layer])
    return theta


def _affine(*rows: Tensor) -> Tensor:
    """The six upper entries (...) -> (..., 3, 3)."""
    zero, one = torch.zeros_like(rows[0]), torch.ones_like(rows[0])
    return torch.stack([*rows, zero, zero, one], -1).unflatten(-1, (3, 3))
