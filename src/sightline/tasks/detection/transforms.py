"""Augmentation of an image together with its boxes and masks: resizing, large-scale jitter, horizontal flip."""

import random
from collections.abc import Callable

import torch
from PIL import Image
from torch import Tensor
from torchvision import tv_tensors
from torchvision.ops import masks_to_boxes
from torchvision.transforms.v2 import functional as F

from sightline.tasks.dense.transforms import Size, fitted, pair, plain, resize_masks, scaled, to_pixels
from sightline.tasks.detection.config import Augment, Data
from sightline.tasks.detection.data import Target

LEAST = 1.0  # pixels of width and height below which a box is dropped after a crop


def resize(image: Image.Image, target: Target, size: Size) -> tuple[Tensor, Target]:
    """All at another size, as tv_tensors."""
    canvas = (image.height, image.width)
    boxes = tv_tensors.BoundingBoxes(target["boxes"], format="XYXY", canvas_size=canvas)
    target = {**target, "boxes": F.resize(boxes, list(size))}
    if "masks" in target:
        target["masks"] = resize_masks(target["masks"], size)
    return to_pixels(image, size), target


def crop(pixels: Tensor, target: Target, top: int, left: int, size: Size) -> tuple[Tensor, Target]:
    """A window, black outside of the image, with the boxes and masks that are left.

    With masks, boxes are drawn around what is left of each mask; v2 would only cut them.
    """
    window = _geometry(target, lambda item: F.crop(item, top, left, *size))
    if "masks" in window:
        window = _select(window, window["masks"].flatten(1).bool().any(1))
        if len(window["masks"]):
            boxes = masks_to_boxes(window["masks"]) + torch.tensor([0.0, 0.0, 1.0, 1.0])
            window["boxes"] = tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=size)
    _, keep = F.sanitize_bounding_boxes(window["boxes"], min_size=LEAST)
    return F.crop(pixels, top, left, *size), _select(window, keep)


def _geometry(target: Target, change: Callable[[Tensor], Tensor]) -> Target:
    return {key: value if key == "labels" else change(value) for key, value in target.items()}


def _select(target: Target, keep: Tensor) -> Target:
    return {key: tv_tensors.wrap(plain(value)[keep], like=value) for key, value in target.items()}


class TrainTransform:
    """An image and its target -> uint8 (3, h, w) and its target."""

    def __init__(self, data: Data, augment: Augment) -> None:
        self.data, self.augment = data, augment

    def __call__(self, image: Image.Image, target: Target, rng: random.Random) -> tuple[Tensor, Target]:
        augment = self.augment
        if augment.resize == "jitter":
            pixels, target = self._jitter(image, target, rng)
        else:
            short = rng.choice(augment.sizes) if augment.resize == "multiscale" else self.data.short
            pixels, target = resize(image, target, fitted(image.height, image.width, short, self.data.long))
        if rng.random() < augment.hflip:
            pixels, target = F.horizontal_flip(pixels), _geometry(target, F.horizontal_flip)
        return plain(pixels), {key: plain(value) for key, value in target.items()}

    def _jitter(self, image: Image.Image, target: Target, rng: random.Random) -> tuple[Tensor, Target]:
        """Large-scale jitter: a random scale relative to the crop, and a random window.

        Not `v2.ScaleJitter` and `v2.RandomCrop`, which pad on both sides; published recipes pad right and below.
        """
        height, width = pair(self.augment.crop)
        factor = rng.uniform(*self.augment.scale) * min(height / image.height, width / image.width)
        size = scaled(image.height, image.width, factor)
        pixels, target = resize(image, target, size)
        top, left = rng.randint(0, max(size[0] - height, 0)), rng.randint(0, max(size[1] - width, 0))
        return crop(pixels, target, top, left, (height, width))
