"""The likeliest classes of images."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor

from sightline.data.images import ImageError, load_image
from sightline.data.labels import in_words
from sightline.tasks.base import ImageSource, Loaded, Prediction, PredictOptions, Row
from sightline.tasks.card import ModelCard
from sightline.tasks.preprocess import at_size, make_transform
from sightline.util.errors import InputError
from sightline.util.names import format_size


@dataclass(frozen=True)
class Classified(Prediction):
    """The likeliest classes of an image: rows of `index`, `class` and `probability`.

    Args:
        pixels: (channels, height, width) as the model took them, on its device; None for an unreadable image.
    """

    pixels: Tensor | None = None


def predict(loaded: Loaded, images: Iterable[ImageSource], options: PredictOptions) -> Iterator[Classified]:
    """Classify images one by one, in order."""
    assert isinstance(loaded.card, ModelCard)
    card = loaded.card if options.img_size is None else at_size(loaded.card, options.img_size)
    transform, names = make_transform(card), in_words(loaded.classes) if loaded.classes else None
    model = loaded.model.to(options.device)
    for source in images:
        file = str(getattr(source, "filename", "image")) if isinstance(source, Image.Image) else str(source)
        try:
            image = source if isinstance(source, Image.Image) else load_image(source, channels=card.input_size[0])
            pixels = transform(image).to(options.device)
        except ImageError as error:
            if options.on_error == "stop":
                raise ImageError(f"{error}; repair or remove it, or pass --on-error skip") from error
            yield Classified(file, error=str(error))
            continue
        with torch.inference_mode():
            try:
                logits: Tensor = model(pixels[None])[0].float()
            except (RuntimeError, AssertionError) as error:
                size, reason = format_size(pixels.shape[1:]), str(error).partition("\n")[0]
                raise InputError(f"{loaded.title} failed on an image of {size}: {reason}") from error
        top = logits.softmax(0).topk(min(options.top, len(logits)))
        rows: list[Row] = [
            {"index": i, "class": names[i] if names else str(i), "probability": round(p, 6)}
            for p, i in zip(top.values.tolist(), top.indices.tolist(), strict=True)
        ]
        yield Classified(file, rows, pixels=pixels)
