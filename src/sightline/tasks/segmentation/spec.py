"""Segmentation as an entry of `sightline.tasks.registry`."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
import torch
from PIL import Image

from sightline.data.order import Placement
from sightline.tasks.base import (
    EvalOptions,
    ImageSource,
    Loaded,
    Metadata,
    Note,
    Prediction,
    PredictOptions,
    Row,
    Scores,
    StateReader,
)
from sightline.tasks.dense.draw import draw_classes
from sightline.tasks.dense.inference import SKIP, EvalPass, check_classes, each_image, eval_section, open_dense
from sightline.tasks.segmentation.config import Config, Data, Inference
from sightline.tasks.segmentation.data import open_split
from sightline.tasks.segmentation.evaluate import evaluate as evaluate_batches
from sightline.tasks.segmentation.infer import predict as classify_pixels
from sightline.tasks.segmentation.model import Card, Head, from_card
from sightline.tasks.segmentation.task import EvalReader, Segmentation


def make(config: Config, placement: Placement, note: Note) -> Segmentation:
    """The task of a run."""
    return Segmentation(config.data, config.model, config.augment, config.loss, config.test, placement)


def open(path: Path, metadata: Metadata, read: StateReader) -> Loaded:
    """The segmenter in a file."""
    return open_dense(path, metadata, read, Head, from_card)


def evaluate(loaded: Loaded, data: str | None, section: object, options: EvalOptions) -> dict[str, Scores]:
    """mIoU, mean accuracy and pixel accuracy, with IoU per class and the confusion matrix."""
    card = cast(Card, loaded.card)
    chosen = eval_section(Data, card, data, section, options)
    split = open_split(chosen, "val", skip=SKIP)
    check_classes(split.title, split.classes, loaded)
    once, model = EvalPass(len(split), options), loaded.model.to(options.device)
    batches = once.batches(EvalReader(split, card.head.short, card.head.long))
    with once.progress() as advance:
        result = evaluate_batches(
            model, batches, card, with_options(card.head.test, options), device=options.device,
            precision=options.precision, on_batch=advance,
        )  # fmt: skip
    return once.scores(result, loaded, split.title, split.notes)


def with_options(test: Inference, options: EvalOptions) -> Inference:
    """How images were evaluated in training, with what the options change."""
    mode = "slide" if options.slide else test.mode
    return replace(test, mode=mode, scales=options.scales or test.scales, flip=options.flip or test.flip)


@dataclass(frozen=True, kw_only=True)
class Segmented(Prediction):
    """The classes of the pixels of an image.

    Args:
        image: the image.
        classes: (H, W) integers, indices of `names`.
        names: of all classes.
    """

    image: Image.Image
    classes: np.ndarray
    names: tuple[str, ...]

    def draw(self) -> Image.Image:
        """The image colored by class, with a legend."""
        return draw_classes(self.image, self.classes, self.names)


def predict(loaded: Loaded, images: Iterable[ImageSource], options: PredictOptions) -> Iterator[Prediction]:
    """The class of every pixel; `found` has the share of each class, largest first."""
    card, names, transform = cast(Card, loaded.card), loaded.classes, loaded.transform
    model = loaded.model.to(options.device)
    assert transform is not None

    @torch.inference_mode()
    def segment(file: str, image: Image.Image) -> Segmented:
        pixels = transform(image).to(options.device)[None]
        size = (image.height, image.width)
        classes = classify_pixels(model, pixels, card.head.test, card.input_size[1:], size)[0].cpu().numpy()
        shares = np.bincount(classes.reshape(-1), minlength=len(names)) / classes.size
        rows: list[Row] = [
            {"class": names[i], "share": round(float(shares[i]), 6)} for i in np.argsort(-shares) if shares[i]
        ]
        return Segmented(file, rows, image=image, classes=classes, names=names)

    return each_image(images, options.on_error, segment)
