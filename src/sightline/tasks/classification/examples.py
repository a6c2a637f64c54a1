"""A few evaluated images for the report of a run."""

from collections.abc import Iterator
from typing import cast

import torch

from sightline.data.splits import Split
from sightline.tasks.base import Example, Loaded
from sightline.tasks.card import ModelCard
from sightline.tasks.classification.config import Data
from sightline.tasks.classification.data import open_split
from sightline.tasks.preprocess import make_transform, shown
from sightline.util.errors import FileError

IMAGES = 4


def examples(loaded: Loaded, section: Data) -> Iterator[Example]:
    """Images of the evaluation split, of different classes, each with its class and the predicted one."""
    if section.source == "synthetic":
        raise FileError("synthetic data has no test images")
    card = cast(ModelCard, loaded.card)
    split, transform = open_split(section, "val", card.classes), make_transform(card)
    for index in _spread(split):
        image = transform(split.image(index, card.input_size[0]))
        with torch.no_grad():
            predicted = int(loaded.model(image.unsqueeze(0)).argmax())
        title = f"{card.classes[split.targets[index]]}, predicted {card.classes[predicted]}"
        yield Example(title, image, shown(image, card))


def _spread(split: Split) -> list[int]:
    """The first image of each of a few classes, spread over all classes."""
    first: dict[int, int] = {}
    for index, label in enumerate(split.targets):
        first.setdefault(label, index)
    found = list(first.values())
    return found[:: max(1, len(found) // IMAGES)][:IMAGES]
