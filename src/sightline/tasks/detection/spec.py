"""Detection as an entry of `sightline.tasks.registry`: the task that the engine trains, evaluation, prediction."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import cast

import torch
from PIL import Image
from torch import Tensor, nn

from sightline.data.images import ORIGINAL
from sightline.data.loader import to_device
from sightline.data.order import Placement
from sightline.models.weights.reader import Weights
from sightline.tasks.base import SKIP, EvalOptions, Loaded, Prediction, PredictOptions, Predictor, Row, Scores
from sightline.tasks.dense.card import DenseCard
from sightline.tasks.dense.draw import draw_objects
from sightline.tasks.dense.task import DenseTask, eval_section, evaluate_split, open_dense
from sightline.tasks.dense.transforms import normalize
from sightline.tasks.detection.config import Config, Data
from sightline.tasks.detection.data import Target, open_split
from sightline.tasks.detection.metrics import ObjectScorer
from sightline.tasks.detection.model import Card, Detector, Head, Objects, from_card, has_masks, in_original
from sightline.tasks.detection.transforms import TrainTransform

Batch = tuple[list[Tensor], list[Target]]


class Detection(DenseTask[Batch, Target, tuple[Tensor, Target], int]):
    """A model, its training batches, their loss, and the images it is evaluated on."""

    shapes = "any"

    def __init__(self, config: Config, placement: Placement) -> None:
        data, model, test, self.weights = config.data, config.model, config.test, config.loss
        masks = has_masks(model.head)
        train = open_split(data, "train", masks=masks)
        self.val = open_split(data, "val", train, masks=masks)
        head = Head(
            name=model.head, channels=model.channels, anchor=model.anchor, categories=train.categories,
            short=data.short, long=data.long, **asdict(test),
        )  # fmt: skip
        card = DenseCard.of("detection", model, data, train.classes, (data.short, data.long), head)
        super().__init__(data, placement, train, self.val, card, TrainTransform(data, config.augment))
        torch.manual_seed(placement.seed)
        self.model = Detector(model, len(train.classes), test).to(placement.device)

    @property
    def compiled(self) -> nn.Module:
        """The backbone with its pyramid; what follows depends on the number of objects."""
        return self.model.detector.backbone

    def batches(self, epoch: int, start: int) -> Iterator[Batch]:
        """The micro-batches of an epoch from update `start` on, ready for the model."""
        device = self.placement.device
        for items in self.packed(epoch, start):
            images = [normalize(to_device(pixels, device), self.card.mean, self.card.std) for pixels, _ in items]
            targets = [{key: to_device(value, device) for key, value in target.items()} for _, target in items]
            yield images, targets

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The weighted sum of the detector's losses."""
        losses = model(*batch)
        zero = torch.zeros((), device=self.placement.device)
        return sum((self._weight(name) * value for name, value in losses.items()), zero)

    def _weight(self, name: str) -> float:
        if "mask" in name:
            return self.weights.masks
        return self.weights.boxes if "box" in name else self.weights.classes

    def scorer(self, device: torch.device) -> ObjectScorer:
        return ObjectScorer(self.card, device, self.val)


make = Detection  # the task of a run


def open(weights: Weights) -> Loaded:
    """The detector in a file."""
    return open_dense(weights, Head, from_card)


def evaluate(loaded: Loaded, data: str | None, section: object, options: EvalOptions) -> dict[str, Scores]:
    """COCO's average precision of boxes and masks, overall and per class."""
    card = cast(Card, loaded.card)
    chosen = eval_section(Data, data, section, options)
    split = open_split(chosen, "val", masks=has_masks(card.head.name), skip=SKIP)
    return evaluate_split(loaded, split, ObjectScorer(card, options.device, split), options)


@dataclass(frozen=True, kw_only=True)
class Detected(Prediction):
    """The objects in an image.

    Args:
        image: the image; a very large one at half its size, while the boxes in `found` are of the file.
        objects: `boxes`, `labels`, `scores` and, of a detector that has them, `masks`.
        names: of all classes; label 1 is the first.
    """

    image: Image.Image = field(repr=False)
    objects: Objects = field(repr=False)
    names: tuple[str, ...] = field(repr=False)

    def draw(self) -> Image.Image:
        """The image with masks, boxes, names and scores."""
        return draw_objects(self.image, self.objects, self.names)


def predictor(loaded: Loaded, options: PredictOptions) -> Predictor:
    """Finds the objects with at least `options.score`; `found` has class, score and box, the most certain first."""
    names, transform = loaded.classes, loaded.transform
    assert transform is not None

    def detect(file: str, image: Image.Image) -> Detected:
        pixels = transform(image).to(options.device)
        outputs = loaded.model([pixels])[0]
        kept = {key: value[outputs["scores"] >= options.score] for key, value in outputs.items()}
        objects = in_original(kept, pixels.shape[-2:], (image.height, image.width))
        columns = zip(*(objects[key].tolist() for key in ("labels", "scores", "boxes")), strict=True)
        rows: list[Row] = [
            {"class": names[label - 1], "score": round(score, 4), "box": _of_file(box, image)}
            for label, score, box in sorted(columns, key=lambda column: -column[1])
        ]
        return Detected(file, rows, image=image, objects=objects, names=names)

    return detect


def _of_file(box: list[float], image: Image.Image) -> list[float]:
    """A box in the pixels of the file, which may have more than the image that was made of it."""
    across, down = (full / side for full, side in zip(image.info.get(ORIGINAL, image.size), image.size, strict=True))
    return [round(value * scale, 1) for value, scale in zip(box, (across, down) * 2, strict=True)]
