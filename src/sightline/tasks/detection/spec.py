"""Detection as an entry of `sightline.tasks.registry`."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

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
from sightline.tasks.dense.draw import draw_objects
from sightline.tasks.dense.inference import SKIP, EvalPass, check_classes, each_image, eval_section, open_dense
from sightline.tasks.detection.config import Config, Data
from sightline.tasks.detection.data import open_split
from sightline.tasks.detection.evaluate import evaluate as evaluate_batches
from sightline.tasks.detection.infer import Detections, in_original
from sightline.tasks.detection.model import Card, Head, from_card, has_masks
from sightline.tasks.detection.task import Detection, EvalReader
from sightline.util.errors import InputError


def make(config: Config, placement: Placement, note: Note) -> Detection:
    """The task of a run."""
    return Detection(config.data, config.model, config.augment, config.loss, config.test, placement)


def open(path: Path, metadata: Metadata, read: StateReader) -> Loaded:
    """The detector in a file."""
    return open_dense(path, metadata, read, Head, from_card)


def evaluate(loaded: Loaded, data: str | None, section: object, options: EvalOptions) -> dict[str, Scores]:
    """COCO's average precision of boxes and masks, overall and per class."""
    given = {"--slide": options.slide, "--scales": options.scales, "--flip": options.flip}
    if wrong := [name for name, value in given.items() if value]:
        raise InputError(f"{', '.join(wrong)}: for segmentation; leave it out for a detector")
    card = cast(Card, loaded.card)
    chosen = eval_section(Data, card, data, section, options)
    split = open_split(chosen, "val", masks=has_masks(card.head.name), skip=SKIP)
    check_classes(split.title, split.classes, loaded)
    once, model = EvalPass(len(split), options), loaded.model.to(options.device)
    batches = once.batches(EvalReader(split, card.head.short, card.head.long))
    with once.progress() as advance:
        result = evaluate_batches(
            model, batches, split, card, device=options.device, precision=options.precision, on_batch=advance
        )
    return once.scores(result, loaded, split.title, split.notes)


@dataclass(frozen=True, kw_only=True)
class Detected(Prediction):
    """The objects in an image.

    Args:
        image: the image.
        objects: boxes, labels, scores and masks.
        names: of all classes; label 1 is the first.
    """

    image: Image.Image
    objects: Detections
    names: tuple[str, ...]

    def draw(self) -> Image.Image:
        """The image with masks, boxes, names and scores."""
        found = self.objects
        return draw_objects(self.image, found.boxes, found.labels, found.scores, found.masks, self.names)


def predict(loaded: Loaded, images: Iterable[ImageSource], options: PredictOptions) -> Iterator[Prediction]:
    """The objects with at least `options.score`; `found` has class, score and box, the most certain first."""
    if not 0 <= options.score <= 1:
        raise InputError(f"--score: expected a number from 0 to 1, got {options.score:g}")
    names, transform, model = loaded.classes, loaded.transform, loaded.model.to(options.device)
    assert transform is not None

    @torch.inference_mode()
    def detect(file: str, image: Image.Image) -> Detected:
        pixels = transform(image).to(options.device)
        outputs = model([pixels])[0]
        kept = {key: value[outputs["scores"] >= options.score] for key, value in outputs.items()}
        objects = in_original(kept, pixels.shape[-2:], (image.height, image.width))
        columns = zip(objects.labels.tolist(), objects.scores.tolist(), objects.boxes.tolist(), strict=True)
        rows: list[Row] = [
            {"class": names[label - 1], "score": round(score, 4), "box": [round(v, 1) for v in box]}
            for label, score, box in sorted(columns, key=lambda column: -column[1])
        ]
        return Detected(file, rows, image=image, objects=objects, names=names)

    return each_image(images, options.on_error, detect)
