"""Images as the card of a model describes them: resized, cropped and normalized, one by one or over a split."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial

import torch
from PIL import Image
from timm.data import resolve_model_data_config
from torch import Tensor, nn

from sightline.data.images import ImageError, resize_transform
from sightline.data.loader import ItemLoader, Items, chunks, stack
from sightline.data.splits import Split
from sightline.tasks.card import ModelCard

Size = int | Sequence[int]  # of both sides, or height and width
Transform = Callable[[Image.Image], Tensor]


def at_size(card: ModelCard, size: Size | None) -> ModelCard:
    """The card for images of another size, (height, width) or one number for both; None for its own."""
    if size is None:
        return card
    height, width = (size, size) if isinstance(size, int) else size
    return replace(card, input_size=(card.input_size[0], height, width))


def card_of(
    name: str,
    arguments: Mapping[str, object],
    model: nn.Module,
    classes: tuple[str, ...],
    channels: int | None = None,
    size: Size | None = None,
) -> ModelCard:
    """The card of a model with the preprocessing it was published with; by default with its channels and size too."""
    usual = resolve_model_data_config(model)
    default_channels, *default_size = usual["input_size"]
    channels = channels or default_channels
    mean, std = (per_channel(usual[key], channels) for key in ("mean", "std"))
    card = ModelCard(
        name, dict(arguments), classes, (channels, 1, 1), mean, std, usual["interpolation"], usual["crop_pct"]
    )
    return at_size(card, size or tuple(default_size))


def per_channel(values: Sequence[float], channels: int) -> tuple[float, ...]:
    """One value per channel: as given, or the mean of what is given for another number of channels."""
    return tuple(values) if len(values) == channels else (sum(values) / len(values),) * channels


def make_transform(card: ModelCard) -> Transform:
    """PIL image -> (channels, height, width) as the card describes, without augmentation."""
    transform: Transform = resize_transform(
        input_size=card.input_size,
        interpolation=card.interpolation,
        mean=card.mean,
        std=card.std,
        crop_pct=card.crop_pct,
    )
    return transform


def shown(image: Tensor, card: ModelCard) -> Image.Image:
    """A normalized image (channels, height, width) as a picture again."""
    mean, std = (torch.tensor(values)[:, None, None] for values in (card.mean, card.std))
    pixels = ((image.cpu() * std + mean).clamp(0, 1) * 255).round().byte()
    return Image.fromarray(pixels.permute(1, 2, 0).squeeze(-1).numpy())


def _stop(messages: Sequence[str]) -> None:
    for message in messages:
        raise ImageError(message)


def one_pass(
    split: Split,
    card: ModelCard,
    batch: int,
    workers: int = 0,
    on_broken: Callable[[Sequence[str]], None] = _stop,
    pin: bool = False,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches (images, indices) over a split, each image once, preprocessed as in `card`.

    Args:
        batch: images of a batch.
        workers: processes that decode; 0 for none.
        on_broken: called with messages about images that cannot be read, which are then left out; by default raises
            ImageError.
    """
    items = Items(len(split), partial(_read, split, make_transform(card), card.input_size[0]), replace=False)
    with closing(ItemLoader(items, workers, on_broken, stack, pin)) as loader:
        yield from filter(None, loader.batches(partial(chunks, len(split), batch)))


def _read(split: Split, transform: Transform, channels: int, index: int, _: random.Random) -> tuple[Tensor, int]:
    return transform(split.image(index, channels)), index
