"""The likeliest classes of images, also of a few examples for the report of a run."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import cast

import torch
from PIL import Image
from torch import Tensor

from sightline.data.images import ImageError
from sightline.data.labels import in_words
from sightline.data.splits import Split
from sightline.tasks.base import Loaded, Prediction, PredictOptions, Predictor, Row
from sightline.tasks.card import ModelCard
from sightline.tasks.classification.config import Data
from sightline.tasks.classification.data import open_split
from sightline.tasks.preprocess import at_size, make_transform, shown
from sightline.util.errors import FileError, InputError
from sightline.util.names import format_size

EXAMPLES = 4  # images in a report


@dataclass(frozen=True, kw_only=True)
class Classified(Prediction):
    """The likeliest classes of an image: rows of `index`, `class` and `probability`.

    Args:
        pixels: (channels, height, width) as the model took them, on its device.
    """

    pixels: Tensor = field(repr=False)


@contextmanager
def input_errors(loaded: Loaded, card: ModelCard) -> Iterator[None]:
    """Name a size that the model does not take."""
    try:
        yield
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        size = format_size(card.input_size[1:])
        raise InputError(f"{loaded.card.title} failed on images of {size}: {reason}") from error


def predictor(loaded: Loaded, options: PredictOptions) -> Predictor:
    """Gives the likeliest classes of an image."""
    assert isinstance(loaded.card, ModelCard)
    card = at_size(loaded.card, options.img_size)
    transform, names = make_transform(card), in_words(loaded.classes) if loaded.classes else None

    def classify(file: str, image: Image.Image) -> Classified:
        pixels = transform(image).to(options.device)
        with input_errors(loaded, card):
            logits = loaded.model(pixels[None])[0].float()
        return Classified(file, _rows(logits, options.top, names), pixels=pixels)

    return classify


def _rows(logits: Tensor, top: int, names: Sequence[str] | None) -> list[Row]:
    best = logits.softmax(0).topk(min(top, len(logits)))
    return [
        {"index": i, "class": names[i] if names else str(i), "probability": round(p, 6)}
        for p, i in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]


def examples(loaded: Loaded, section: Data) -> Iterator[tuple[str, Tensor, Image.Image]]:
    """Images of the evaluation split, of different classes, each with its class and the predicted one."""
    if section.source == "synthetic":
        raise FileError("synthetic data has no test images")
    card = cast(ModelCard, loaded.card)
    split, transform = open_split(section, "val", card.classes), make_transform(card)
    for indices in _spread(split):
        index, picture = _first_readable(split, indices, card.input_size[0])
        image = transform(picture)
        with torch.no_grad():
            predicted = int(loaded.model(image.unsqueeze(0)).argmax())
        title = f"{card.classes[split.targets[index]]}, predicted {card.classes[predicted]}"
        yield title, image, shown(image, card)


def _spread(split: Split) -> list[list[int]]:
    """The images of each of a few classes, spread over all classes."""
    of_class: dict[int, list[int]] = {}
    for index, label in enumerate(split.targets):
        of_class.setdefault(label, []).append(index)
    found = list(of_class.values())
    return found[:: max(1, len(found) // EXAMPLES)][:EXAMPLES]


def _first_readable(split: Split, indices: list[int], channels: int) -> tuple[int, Image.Image]:
    """The first of some images that can be read; raises what the last one does if none can."""
    for index in indices[:-1]:
        with suppress(ImageError):
            return index, split.image(index, channels)
    return indices[-1], split.image(indices[-1], channels)
