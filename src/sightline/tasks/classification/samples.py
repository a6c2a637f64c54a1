"""Images one by one in loader processes: decoded, augmented by timm from the seed of their position, uint8."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from sightline.data.images import ImageError
from sightline.data.loader import Keys, start_worker
from sightline.data.order import Key
from sightline.data.splits import Split
from sightline.tasks.card import ModelCard
from sightline.tasks.classification.batch import Batch
from sightline.tasks.classification.config import Augment
from sightline.util.errors import InputError

Transform = Callable[[Image.Image], np.ndarray]
Sample = tuple[Tensor | None, int, str | None]  # pixels, class, what was wrong


class Samples(Dataset[Sample]):
    """A split whose items are uint8 (C, H, W) with their class; an unreadable one gives a message.

    Args:
        split: labeled images.
        transform: PIL image -> uint8 array.
        channels: of the model.
        replace: take the next readable image for a broken one, so that a training batch stays whole.
    """

    def __init__(self, split: Split, transform: Transform, channels: int = 3, replace: bool = False) -> None:
        self.split = split
        self.transform = transform
        self.channels = channels
        self.replace = replace

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, key: Key) -> Sample:
        first, seed = key
        broken = None
        for index in (*range(first, len(self)), *range(first)):
            try:
                pixels = self._pixels(index, seed)
            except ImageError as error:
                broken = broken or str(error)
                if not self.replace:
                    break
                continue
            return pixels, self.split.targets[index], broken
        return None, self.split.targets[first], broken

    def _pixels(self, index: int, seed: int) -> Tensor:
        image = self.split.image(index, self.channels)
        random.seed(seed)
        np.random.seed(seed & 0xFFFFFFFF)
        torch.random.default_generator.manual_seed(seed)
        return torch.from_numpy(np.ascontiguousarray(self.transform(image)))


def collate(samples: Sequence[Sample]) -> Batch:
    """Samples that could be read, stacked; what was wrong with the others."""
    good = [(pixels, target) for pixels, target, _ in samples if pixels is not None]
    broken = tuple(message for _, _, message in samples if message is not None)
    images = torch.stack([pixels for pixels, _ in good]) if good else torch.empty(0, dtype=torch.uint8)
    return Batch(images, torch.tensor([target for _, target in good], dtype=torch.long), broken)


def make_loader(samples: Samples, keys: Keys, workers: int, pin: bool) -> DataLoader[Any]:
    """A loader of the batches in `keys`, with processes that outlive an epoch."""
    return DataLoader(
        samples,
        batch_sampler=keys,
        num_workers=workers,
        collate_fn=collate,
        pin_memory=pin,
        persistent_workers=workers > 0,
        worker_init_fn=start_worker,
    )


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


def _geometry(card: ModelCard, crop_pct: float) -> list[Transform]:
    """timm's resize and center crop of evaluation, without what follows them."""
    from timm.data import create_transform

    made = create_transform(
        card.input_size, is_training=False, interpolation=card.interpolation, crop_pct=crop_pct, use_prefetcher=True
    )
    return list(made.transforms[:-1])
