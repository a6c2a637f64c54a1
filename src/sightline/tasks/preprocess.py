"""From a decoded image to what a model is evaluated on: resize, center crop, normalize."""

from collections.abc import Callable
from dataclasses import replace

from PIL import Image
from torch import Tensor

from sightline.tasks.card import ModelCard

Size = int | tuple[int, int]


def at_size(card: ModelCard, size: Size) -> ModelCard:
    """The card for images of another size, (height, width) or one number for both."""
    height, width = (size, size) if isinstance(size, int) else size
    return replace(card, input_size=(card.input_size[0], height, width))


def make_transform(card: ModelCard) -> Callable[[Image.Image], Tensor]:
    """PIL image -> (channels, height, width) as the card describes, without augmentation."""
    from timm.data import create_transform

    transform: Callable[[Image.Image], Tensor] = create_transform(
        input_size=card.input_size,
        is_training=False,
        interpolation=card.interpolation,
        mean=card.mean,
        std=card.std,
        crop_pct=card.crop_pct,
    )
    return transform
