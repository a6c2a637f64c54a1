"""Sequences as an entry of `sightline.tasks.registry`."""

from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace

import numpy as np

from sightline.data.order import Placement
from sightline.tasks.base import EvalOptions, ImageSource, Loaded, Note, Prediction, PredictOptions, Scores
from sightline.tasks.evaluation import LabelScorer
from sightline.tasks.sequences.card import SequenceCard
from sightline.tasks.sequences.config import Config, Data
from sightline.tasks.sequences.data import SPLITS, ProgressPrinter, cut, open_splits
from sightline.tasks.sequences.model import open_model as open
from sightline.tasks.sequences.task import Sequences
from sightline.util.errors import InputError

__all__ = ["evaluate", "make", "open", "predict"]


def make(config: Config, placement: Placement, note: Note) -> Sequences:
    """The task of a run."""
    return Sequences(config.data, config.model, config.loss, placement)


def evaluate(loaded: Loaded, data: str | None, section: object, options: EvalOptions) -> dict[str, Scores]:
    """Accuracy, calibration error and loss, with recall and precision per class.

    Args:
        data: folder of the files as published; by default that of the run, or generated as in the run.
        section: the section `data` of the run; by default the data as published.
    """
    given = {
        "img_size": options.img_size, "labels": options.labels != "names", "limit": options.limit,
        "slide": options.slide, "scales": options.scales, "flip": options.flip,
    }  # fmt: skip
    if names := [name for name, value in given.items() if value]:
        raise InputError(f"{', '.join(names)}: for images; leave it out for sequences")
    card, split = loaded.card, options.split or "test"
    assert isinstance(card, SequenceCard)
    if split not in SPLITS:
        raise InputError(f"split: expected one of {', '.join(SPLITS)}; got {split!r}")
    chosen = section if isinstance(section, Data) else Data(name=card.task)  # type: ignore[arg-type]
    if card.task != chosen.name:
        raise InputError(f"{loaded.path}: a model of {card.task}, and the data are of {chosen.name}")
    chosen = replace(chosen, length=card.length, path=chosen.path if data is None else data)
    tokens = open_splits(chosen, ProgressPrinter(), (split,))[split]
    shares = np.split(np.arange(len(tokens)), range(options.batch_size, len(tokens), options.batch_size))
    batches = ((ids.int(), labels) for ids, labels in (tokens.batch(share, card.length) for share in shares))
    with options.progress(len(tokens), split) if options.progress else nullcontext() as advance:
        scorer, model = LabelScorer(len(card.classes), options.device), loaded.model.to(options.device)
        found = scorer.evaluate(model, batches, options.precision, on_batch=advance)
    return {
        "usual": Scores(
            found.values, found.per_class(card.classes), found.confusion, found.images, found.seconds,
            f"{card.task}, {split}", details={"task": card.task, "split": split, "cut": cut(chosen, tokens)},
        )
    }  # fmt: skip


def predict(loaded: Loaded, images: Iterable[ImageSource], options: PredictOptions) -> Iterator[Prediction]:
    """Models of sequences take no images."""
    raise InputError(f"{loaded.path}: a model of sequences, not of images; use `sightline eval`")
