"""Opening, evaluating and predicting with a segmenter or detector: what both tasks share."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from PIL import Image
from torch import nn

from sightline.data.images import ImageError, load_image
from sightline.data.loader import BrokenImages, ItemLoader, Items, Read, chunks
from sightline.tasks.base import (
    Advance,
    EvalOptions,
    Evaluation,
    ImageSource,
    Loaded,
    Metadata,
    OnError,
    Prediction,
    Scores,
    StateReader,
)
from sightline.tasks.card import CardError
from sightline.tasks.create import restore
from sightline.tasks.dense.card import DenseCard, H
from sightline.tasks.dense.config import DenseData
from sightline.tasks.dense.transforms import InferenceTransform
from sightline.util.errors import InputError

SKIP = "--on-error skip"  # option of `sightline eval` and `predict`
NOUNS = {"segmentation": "a segmenter", "detection": "a detector"}
T = TypeVar("T")
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


def eval_section(kind: type[D], card: DenseCard[H], data: str | None, section: object, options: EvalOptions) -> D:
    """The section `data` of an evaluation: that of the run or the defaults, with what the options change.

    Raises:
        InputError: no data are given, the run is of another task, or an option is not for this task.
    """
    given = {"--img-size": options.img_size is not None, "--labels": options.labels != "names"}
    if wrong := [name for name, is_given in given.items() if is_given]:
        raise InputError(f"{', '.join(wrong)}: for classifiers; leave it out for {NOUNS[card.task]}")
    if section is None:
        if data is None:
            raise InputError("--data: missing; give the images to evaluate on (only a run folder records its own)")
        section = kind()
    if not isinstance(section, kind):
        raise InputError(f"config.yaml: a run of another task than {card.task}; give the file of weights and --data")
    return replace(
        section, path=data or section.path, val_split=options.split or section.val_split, limit=options.limit,
        on_error=options.on_error, workers=options.workers,
    )  # fmt: skip


def check_classes(title: str, classes: tuple[str, ...], loaded: Loaded) -> None:
    """Reject data with other classes than the model."""
    if classes != loaded.classes:
        raise InputError(f"--data: the classes of {title} are not those of {loaded.path}; give the same classes")


class EvalPass:
    """One pass over the images of a split, in order.

    Args:
        count: images.
        options: batch size, loader processes, what to do with broken images, and the progress bar.
    """

    def __init__(self, count: int, options: EvalOptions) -> None:
        self.count, self.options = count, options
        self.broken = BrokenImages(options.on_error, SKIP)

    def batches(self, read: Read[T]) -> Iterator[list[T]]:
        """The items of the split; messages about those that cannot be used go to `broken`."""
        loader = ItemLoader(Items(self.count, read, False), self.options.workers, self.broken.add, list)
        with closing(loader):
            yield from loader.batches(partial(chunks, self.count, self.options.batch_size))

    def progress(self) -> AbstractContextManager[Advance | None]:
        """The progress bar, if there is one."""
        bar = self.options.progress
        return nullcontext() if bar is None else bar(self.count, "images")

    def scores(self, result: Evaluation, loaded: Loaded, title: str, notes: tuple[str, ...]) -> dict[str, Scores]:
        """The result of `sightline.evaluate`, under the one set of labels that these tasks have."""
        rows = result.per_class(loaded.classes)
        scores = Scores(
            dict(result), rows, result.confusion, result.images, result.seconds, title, None,
            tuple(self.broken.messages), notes,
        )  # fmt: skip
        return {"usual": scores}


def each_image(
    images: Iterable[ImageSource], on_error: OnError, find: Callable[[str, Image.Image], Prediction]
) -> Iterator[Prediction]:
    """One prediction per image, by `find` of its name and pixels; an unreadable one stops, or gives its error."""
    for number, source in enumerate(images, 1):
        name = f"image {number}" if isinstance(source, Image.Image) else str(source)
        try:
            image = source.convert("RGB") if isinstance(source, Image.Image) else load_image(source)
        except ImageError as error:
            if on_error == "stop":
                raise ImageError(f"{error}; repair or remove it, or pass {SKIP}") from error
            yield Prediction(name, error=str(error))
        else:
            yield find(name, image)
