"""Predict with any model of images: the task of its weights decides what is found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import get_args

import torch
from PIL import Image

from sightline.data.images import MODES, ImageError, find_images, load_image
from sightline.hub import load
from sightline.tasks.base import SKIP, ImageSource, Loaded, OnError, Prediction, PredictOptions, Predictor
from sightline.tasks.registry import TASKS
from sightline.tasks.replay import replayed
from sightline.util.device import choose_device
from sightline.util.errors import InputError, shown
from sightline.util.schema import MOST_CLASSES, both_sides, check_choice, check_whole


def predict(
    loaded: Loaded | str | Path | None,
    images: ImageSource | Iterable[ImageSource],
    top: int = 5,
    *,
    img_size: int | tuple[int, int] | None = None,
    score: float = 0.5,
    device: str = "auto",
    on_error: OnError = "stop",
) -> Iterator[Prediction]:
    """Predict what is in images, one after the other.

    Args:
        loaded: what `sightline.load` opened, or a path that it opens; None for the model in the package.
        images: a file, a folder, a pattern such as "photos/*.jpg", a PIL image, or several files and PIL images.
        top: classes per image (classification).
        img_size: height and width; by default those of training (classification).
        score: least score of a detection.
        device: auto, cpu, cuda, mps or cuda:1; the model is moved there.
        on_error: "stop" at an unreadable image, or "skip" it with its `error`.

    Yields:
        A `Prediction` per image, in order: `found` has rows of classes with probabilities, shares of pixels, or
        scores and boxes; `draw()` gives a picture of masks or boxes.

    Raises:
        InputError: an option cannot be used.
        ImageError: an image cannot be read.

    Example:
        >>> for result in sightline.predict(sightline.load("runs/quick"), "photo.png", top=1):
        ...     print(result.file, result.found[0]["class"] in ("blue", "green", "red"))
        photo.png True
    """
    loaded = loaded if isinstance(loaded, Loaded) else load(loaded)
    check_whole("top", top, 1, MOST_CLASSES)
    if not isinstance(score, int | float) or not 0 <= score <= 1:
        raise InputError(f"score: expected 0 to 1; got {shown(score)}")
    if isinstance(images, str | Path):
        images = find_images([str(images)])
    elif isinstance(images, Image.Image):
        images = [images]
    elif not isinstance(images, Iterable):
        raise InputError(f"images: expected a path, a PIL image or several of them; got {shown(images)}")
    check_choice("on_error", on_error, get_args(OnError))
    options = PredictOptions(choose_device(device), top, both_sides("img_size", img_size), score)
    loaded = replace(loaded, model=replayed(loaded.model, options.device))
    predictor = TASKS[loaded.task].predictor(loaded, options)
    return _predict_each(predictor, images, loaded.card.input_size[0], on_error)


def _predict_each(
    predictor: Predictor, images: Iterable[ImageSource], channels: int, on_error: OnError
) -> Iterator[Prediction]:
    for number, source in enumerate(images, 1):
        file = str(source)
        try:
            if isinstance(source, Image.Image):
                file = str(getattr(source, "filename", "") or f"image {number}")
                image = source.convert(MODES.get(channels))
            elif not isinstance(source, str | Path):
                raise InputError(f"images: expected paths and PIL images; got {shown(source)}")
            else:
                image = load_image(source, channels=channels)
            with torch.inference_mode():
                found = predictor(file, image)
        except ImageError as error:
            if on_error == "stop":
                raise ImageError(f"{error}; repair or remove it, or pass {SKIP}") from error
            yield Prediction(file, error=str(error))
            continue
        yield found
