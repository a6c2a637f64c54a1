"""Segmentation as an entry of `sightline.tasks.registry`."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
from PIL import Image
from torch import Tensor, nn

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
from sightline.tasks.dense.inference import SKIP, eval_section, evaluate_split, open_dense, predict_each
from sightline.tasks.segmentation.config import Config, Data
from sightline.tasks.segmentation.data import open_split
from sightline.tasks.segmentation.infer import predict as classify_pixels
from sightline.tasks.segmentation.metrics import PixelScorer
from sightline.tasks.segmentation.model import Card, Head, from_card
from sightline.tasks.segmentation.task import Segmentation


def make(config: Config, placement: Placement, note: Note) -> Segmentation:
    """The task of a run."""
    return Segmentation(config, placement)


def open(path: Path, metadata: Metadata, read: StateReader) -> Loaded:
    """The segmenter in a file."""
    return open_dense(path, metadata, read, Head, from_card)


def evaluate(loaded: Loaded, data: str | None, section: object, options: EvalOptions) -> dict[str, Scores]:
    """mIoU, mean accuracy and pixel accuracy, with IoU per class and the confusion matrix."""
    card = cast(Card, loaded.card)
    split = open_split(eval_section(Data, card.task, data, section, options), "val", skip=SKIP)
    usual = card.head.test
    test = replace(
        usual, mode="slide" if options.slide else usual.mode, scales=options.scales or usual.scales,
        flip=options.flip or usual.flip,
    )  # fmt: skip
    return evaluate_split(loaded, card, split, PixelScorer(card, test, options.device), options)


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
    card, names = cast(Card, loaded.card), loaded.classes

    def segment(model: nn.Module, pixels: Tensor, file: str, image: Image.Image) -> Segmented:
        size = (image.height, image.width)
        classes = classify_pixels(model, pixels[None], card.head.test, card.input_size[1:], size)[0].cpu().numpy()
        shares = np.bincount(classes.reshape(-1), minlength=len(names)) / classes.size
        rows: list[Row] = [
            {"class": names[i], "share": round(float(shares[i]), 6)} for i in np.argsort(-shares) if shares[i]
        ]
        return Segmented(file, rows, image=image, classes=classes, names=names)

    return predict_each(loaded, images, options, segment)
