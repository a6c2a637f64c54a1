"""Segmentation as an entry of `sightline.tasks.registry`: the task that the engine trains, evaluation, prediction."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from sightline.data.loader import stack, to_device
from sightline.data.order import Placement
from sightline.models.weights.reader import Weights
from sightline.tasks.base import SKIP, EvalOptions, Loaded, Prediction, PredictOptions, Predictor, Row, Scores
from sightline.tasks.card import CardError
from sightline.tasks.dense.card import DenseCard
from sightline.tasks.dense.draw import draw_classes
from sightline.tasks.dense.task import DenseTask, eval_section, evaluate_split, open_dense, read_dense
from sightline.tasks.dense.transforms import InferenceTransform, normalize, pair
from sightline.tasks.segmentation.config import Config, Data
from sightline.tasks.segmentation.data import IGNORE, open_split
from sightline.tasks.segmentation.infer import likeliest
from sightline.tasks.segmentation.metrics import Item, PixelScorer
from sightline.tasks.segmentation.model import Card, Head, Segmenter, from_card
from sightline.tasks.segmentation.transforms import TrainTransform
from sightline.util.errors import InputError

MAX_PASSES = 32  # scales, and windows that cover a pixel along each side, that a file may ask for
Batch = tuple[Tensor, Tensor]  # normalized images (B, 3, h, w); masks (B, h, w)


class Segmentation(DenseTask[Batch, Tensor, Item, Tensor]):
    """A model, its training batches, their loss, and the images it is evaluated on."""

    def __init__(self, config: Config, placement: Placement) -> None:
        data, model, self.options = config.data, config.model, config.loss
        auxiliary = config.loss.auxiliary > 0
        train = open_split(data, "train")
        val = open_split(data, "val", train.labels)
        head = Head(
            name=model.head, channels=model.channels, drop=model.drop, auxiliary=auxiliary, short=data.short,
            long=data.long, test=config.test,
        )  # fmt: skip
        card = DenseCard.of("segmentation", model, data, train.classes, pair(data.size), head)
        super().__init__(data, placement, train, val, card, TrainTransform(data, config.augment), stack)
        if self.order.local == 1 and (model.head == "upernet" or auxiliary):
            raise InputError(
                f"batch.size={placement.batch} gives one image per process and micro-batch, but batch norm needs two; "
                f"give at least {2 * placement.ranks * placement.accumulate}"
            )
        torch.manual_seed(placement.seed)
        self.model = Segmenter(model, len(train.classes), auxiliary).to(placement.device)

    def batches(self, epoch: int, start: int) -> Iterator[Batch]:
        """The micro-batches of an epoch from update `start` on, ready for the model."""
        for batch in self.packed(epoch, start):
            images, masks = (to_device(tensor, self.placement.device) for tensor in batch)
            yield normalize(images, self.card.mean, self.card.std), masks.long()

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean cross entropy over pixels that are not ignored, with that of the auxiliary head."""
        images, masks = batch
        logits, auxiliary = model(images)
        total = self._cross_entropy(logits, masks)
        if auxiliary is not None:
            total = total + self.options.auxiliary * self._cross_entropy(auxiliary, masks)
        return total

    def _cross_entropy(self, logits: Tensor, masks: Tensor) -> Tensor:
        """0, not NaN, if every pixel of the batch is ignored."""
        smoothing = self.options.smoothing
        summed = F.cross_entropy(logits.float(), masks, ignore_index=IGNORE, reduction="sum", label_smoothing=smoothing)
        return summed / (masks != IGNORE).sum().clamp(min=1)

    def scorer(self, device: torch.device) -> PixelScorer:
        return PixelScorer(self.card, device)


make = Segmentation  # the task of a run


def read_card(metadata: Mapping[str, str]) -> tuple[Card, InferenceTransform]:
    """The card in the metadata of a file, and its transform."""
    return read_dense(metadata, Head)


def open(weights: Weights) -> Loaded:
    """The segmenter in a file."""
    loaded = open_dense(weights, Head, from_card)
    card = cast(Card, loaded.card)
    test, sides = card.head.test, card.input_size[1:]
    stride = sides if test.stride is None else pair(test.stride)
    if len(test.scales) > MAX_PASSES or any(MAX_PASSES * step < side for step, side in zip(stride, sides, strict=True)):
        raise CardError(f"its card has scales={test.scales[:3]}, stride={test.stride}, which would take too long")
    return loaded


def evaluate(loaded: Loaded, data: str | None, section: object, options: EvalOptions) -> dict[str, Scores]:
    """mIoU, mean accuracy and pixel accuracy, with IoU per class and the confusion matrix."""
    card = cast(Card, loaded.card)
    split = open_split(eval_section(Data, data, section, options), "val", skip=SKIP)
    usual = card.head.test
    test = replace(
        usual, mode="slide" if options.slide else usual.mode, scales=options.scales or usual.scales,
        flip=options.flip or usual.flip,
    )  # fmt: skip
    return evaluate_split(loaded, split, PixelScorer(card, options.device, test), options)


@dataclass(frozen=True, kw_only=True)
class Segmented(Prediction):
    """The classes of the pixels of an image.

    Args:
        image: the image.
        classes: (H, W) integers, indices of `names`.
        names: of all classes.
    """

    image: Image.Image = field(repr=False)
    classes: np.ndarray = field(repr=False)
    names: tuple[str, ...] = field(repr=False)

    def draw(self) -> Image.Image:
        """The image colored by class, with a legend."""
        return draw_classes(self.image, self.classes, self.names)


def predictor(loaded: Loaded, options: PredictOptions) -> Predictor:
    """Finds the class of every pixel; `found` has the share of each class, largest first."""
    card, names, transform = cast(Card, loaded.card), loaded.classes, loaded.transform
    assert transform is not None

    def segment(file: str, image: Image.Image) -> Segmented:
        pixels, size = transform(image).to(options.device), (image.height, image.width)
        classes = likeliest(loaded.model, pixels[None], card.head.test, card.input_size[1:], size)[0].cpu().numpy()
        shares = np.bincount(classes.reshape(-1), minlength=len(names)) / classes.size
        rows: list[Row] = [
            {"class": names[i], "share": round(float(shares[i]), 6)} for i in np.argsort(-shares) if shares[i]
        ]
        return Segmented(file, rows, image=image, classes=classes, names=names)

    return segment
