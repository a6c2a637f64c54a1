"""From a decoded image to uint8 pixels by timm's transforms: augmented for training, or cropped for evaluation."""

from collections.abc import Callable
from functools import partial

import numpy as np
from PIL import Image, ImageOps

from sightline.data.images import resize_transform
from sightline.tasks.card import ModelCard
from sightline.tasks.classification.config import Augment
from sightline.util.errors import InputError

Transform = Callable[[Image.Image], np.ndarray]
LONGEST = 1.5  # sides of a preloaded image to those of a square one


def _keep_a_bit() -> None:
    """timm's posterize may keep zero bits, which Pillow 13 and newer rejects: keep at least one."""
    from timm.data.auto_augment import NAME_TO_OP

    NAME_TO_OP |= dict.fromkeys(("Posterize", "PosterizeIncreasing", "PosterizeOriginal"), _posterize)


def _posterize(image: Image.Image, bits: int, **_: object) -> Image.Image:
    return image if bits >= 8 else ImageOps.posterize(image, max(1, bits))


def train_transform(card: ModelCard, augment: Augment) -> Transform:
    """Crop, flip and change colors with timm's transforms; returns uint8, normalized later on the device."""
    from timm.data import create_transform
    from timm.data.transforms import ToNumpy
    from torchvision import transforms

    _keep_a_bit()
    try:
        first, second, _ = create_transform(
            card.input_size,
            is_training=True,
            scale=augment.scale,
            ratio=augment.ratio,
            hflip=augment.hflip,
            vflip=augment.vflip,
            color_jitter=augment.color_jitter or None,
            auto_augment=augment.auto,
            interpolation=card.interpolation,
            mean=card.mean,
            separate=True,
            use_prefetcher=True,
        )
    except (AssertionError, ValueError, KeyError) as error:  # everything else in it has been checked
        raise InputError(
            f"augment.auto: timm does not know {augment.auto!r} ({error}); give one such as rand-m9-mstd0.5-inc1"
        ) from error
    height, width = card.input_size[1:]
    if augment.crop != "resized":
        flips = [f(p=p) for f, p in ((transforms.RandomHorizontalFlip, augment.hflip),
                                     (transforms.RandomVerticalFlip, augment.vflip)) if p]  # fmt: skip
        pad = [transforms.RandomCrop((height, width), (width // 8, height // 8))] if augment.crop == "padded" else []
        geometry = _geometry(card, 1.0 if pad else card.crop_pct)
        first = transforms.Compose([*geometry, *pad, *flips])
    return transforms.Compose([first, second, ToNumpy()])


def eval_transform(card: ModelCard) -> Transform:
    """Resize and center crop; returns uint8."""
    from timm.data.transforms import ToNumpy
    from torchvision import transforms

    return transforms.Compose([*_geometry(card, card.crop_pct), ToNumpy()])


def whole_transform(card: ModelCard) -> Transform:
    """Resize to cover the size of the card, and keep up to LONGEST times its sides; returns uint8 of some size."""
    from timm.data.transforms import ToNumpy
    from torchvision import transforms

    *resize, _ = _geometry(card, 1.0)
    height, width = (int(LONGEST * side) for side in card.input_size[1:])
    return transforms.Compose([*resize, partial(_middle, height, width), ToNumpy()])


def _middle(height: int, width: int, image: Image.Image) -> Image.Image:
    """What is at most `height` x `width` of an image."""
    wide, tall = min(width, image.width), min(height, image.height)
    left, top = (image.width - wide) // 2, (image.height - tall) // 2
    return image.crop((left, top, left + wide, top + tall))


def _geometry(card: ModelCard, crop_pct: float) -> list[Transform]:
    """timm's resize and center crop of evaluation, without what follows them."""
    made = resize_transform(
        input_size=card.input_size, interpolation=card.interpolation, crop_pct=crop_pct, use_prefetcher=True
    )
    return list(made.transforms[:-1])
