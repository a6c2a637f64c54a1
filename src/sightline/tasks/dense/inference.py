"""Opening, evaluating and predicting with a segmenter or detector: what both tasks share."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from PIL import Image
from torch import Tensor, nn

from sightline.data.images import ImageError, load_image
from sightline.data.loader import BrokenImages, chunks
from sightline.tasks.base import (
    EvalOptions,
    ImageSource,
    Loaded,
    Metadata,
    Prediction,
    PredictOptions,
    Scores,
    StateReader,
)
from sightline.tasks.card import CardError
from sightline.tasks.create import restore
from sightline.tasks.dense.card import DenseCard, H
from sightline.tasks.dense.config import DenseData
from sightline.tasks.dense.data import Split
from sightline.tasks.dense.task import DenseScorer, eval_loader
from sightline.tasks.dense.transforms import InferenceTransform
from sightline.util.errors import InputError

SKIP = "--on-error skip"  # option of `sightline eval` and `predict`
Truth = TypeVar("Truth")
D = TypeVar("D", bound=DenseData)


def open_dense(
    path: Path, metadata: Metadata, read: StateReader, head: type[H], make: Callable[[DenseCard[H]], nn.Module]
) -> Loaded:
    """The model in a file with a card, checked on the meta device before memory is taken."""
    try:
        card = DenseCard.read(metadata, head)
    except CardError as error:
        raise CardError(f"{path}: {error}") from error
    model = restore(path, card.arguments, read(), lambda: make(card), card.title)
    transform = InferenceTransform(card.head.short, card.head.long, card.mean, card.std)
    return Loaded(model, card, transform, card.classes, path, card.task)


def eval_section(kind: type[D], task: str, data: str | None, section: object, options: EvalOptions) -> D:
    """The section `data` of an evaluation: that of the run or the defaults, with what the options change.

    Raises:
        InputError: no data are given, the run is of another task, or an option is not for this task.
    """
    given = {"img_size": options.img_size is not None, "labels": options.labels != "names"}
    if wrong := [name for name, is_given in given.items() if is_given]:
        raise InputError(f"{', '.join(wrong)}: for classifiers; leave it out for {task}")
    if section is None and data is None:
        raise InputError("data: missing; give the images to evaluate on (only a run folder records its own)")
    section = section or kind()
    assert isinstance(section, kind), "a run has the configuration of its task"
    return replace(
        section, path=data or section.path, val_split=options.split or section.val_split, limit=options.limit,
        on_error=options.on_error, workers=options.workers,
    )  # fmt: skip


def evaluate_split(
    loaded: Loaded, split: Split[Any, Truth], scorer: DenseScorer[H, tuple[Tensor, Truth]], options: EvalOptions
) -> dict[str, Scores]:
    """The result of `sightline.evaluate`, under the one set of labels that these tasks have."""
    if split.classes != loaded.classes:
        raise InputError(f"data: the classes of {split.title} are not those of {loaded.path}; give the same classes")
    broken = BrokenImages(options.on_error, SKIP)
    loader = eval_loader(split, scorer.card, options.workers, broken)
    batches = loader.batches(partial(chunks, len(split), options.batch_size))
    bar = nullcontext() if options.progress is None else options.progress(len(split), "images")
    with closing(loader), bar as advance:
        result = scorer.evaluate(loaded.model.to(options.device), batches, options.precision, on_batch=advance)
    scores = Scores(
        dict(result), result.per_class(loaded.classes), result.confusion, result.images, result.seconds, split.title,
        broken=tuple(broken.messages), notes=split.notes,
    )  # fmt: skip
    return {"usual": scores}


def predict_each(
    loaded: Loaded,
    images: Iterable[ImageSource],
    options: PredictOptions,
    find: Callable[[nn.Module, Tensor, str, Image.Image], Prediction],
) -> Iterator[Prediction]:
    """One prediction per image, in order; an unreadable one stops, or gives its error.

    Args:
        find: called with the model, the pixels as it takes them (3, h, w), the name of the image and the image.
    """
    model, transform = loaded.model.to(options.device), loaded.transform
    assert transform is not None
    for number, source in enumerate(images, 1):
        name = f"image {number}" if isinstance(source, Image.Image) else str(source)
        try:
            image = source.convert("RGB") if isinstance(source, Image.Image) else load_image(source)
        except ImageError as error:
            if options.on_error == "stop":
                raise ImageError(f"{error}; repair or remove it, or pass {SKIP}") from error
            yield Prediction(name, error=str(error))
            continue
        with torch.inference_mode():
            found = find(model, transform(image).to(options.device), name, image)
        yield found
