"""Images with their annotations one by one in loader processes; what cannot be used is told, not raised."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import ExifTags, Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from sightline.data.images import ImageError, load_image
from sightline.data.loader import Keys, start_worker
from sightline.data.order import Key

__all__ = ["AnnotationError", "Items", "Keys", "Loaded", "collate", "load_annotated", "make_loader", "normalize"]

# From upright back to how pixels are stored, by the EXIF entries that turn an image on its side.
BACK = {
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


class AnnotationError(ImageError):
    """An annotation that cannot be used; the message is one line that begins with its file."""


def load_annotated(path: Path, height: int, width: int) -> Image.Image:
    """The RGB image that annotations for `height` x `width` pixels belong to.

    That is the upright one, unless its EXIF entry lays it on its side and only the pixels as stored have that size.
    """
    image = load_image(path)
    if height == width or (image.width, image.height) != (height, width):
        return image
    with Image.open(path) as file:
        turn = file.getexif().get(ExifTags.Base.Orientation)
    return image.transpose(BACK[turn]) if turn in BACK else image


@dataclass(frozen=True)
class Loaded:
    """The items of a batch, and messages about those that could not be used."""

    items: list[Any]
    broken: tuple[str, ...]

    def pin_memory(self) -> "Loaded":
        return self  # items are of different sizes and are copied one by one


class Items(Dataset[Any]):
    """Items of a data set by (index, seed).

    Args:
        count: how many there are.
        read: index and source of randomness -> item; raises ImageError.
        replace: take the next usable item for a broken one, so that a training batch stays whole.
    """

    def __init__(self, count: int, read: Callable[[int, random.Random], Any], replace: bool) -> None:
        self.count, self.read, self.replace = count, read, replace

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, key: Key) -> tuple[Any, list[str]]:
        first, seed = key
        broken: list[str] = []
        for index in (*range(first, self.count), *range(first)):
            try:
                return self.read(index, random.Random(seed)), broken
            except ImageError as error:
                broken.append(str(error))
                if not self.replace:
                    break
        return None, broken


def collate(samples: Sequence[tuple[Any, list[str]]]) -> Loaded:
    """A batch as a list."""
    messages = tuple(message for _, broken in samples for message in broken)
    return Loaded([item for item, _ in samples if item is not None], messages)


def make_loader(items: Items, keys: Keys, workers: int) -> DataLoader[Any]:
    """A loader of the batches in `keys`, with processes that outlive an epoch."""
    return DataLoader(
        items,
        batch_sampler=keys,
        num_workers=workers,
        collate_fn=collate,
        persistent_workers=workers > 0,
        worker_init_fn=start_worker,
    )


def normalize(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """uint8 (..., 3, H, W) -> float with the mean and deviation of the channels."""
    centre = torch.tensor(mean, device=images.device).view(-1, 1, 1)
    spread = torch.tensor(std, device=images.device).view(-1, 1, 1)
    return (images.float() / 255 - centre) / spread
