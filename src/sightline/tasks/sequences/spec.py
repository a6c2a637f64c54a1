"""Sequences as an entry of `sightline.tasks.registry`."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from sightline.data.order import Placement
from sightline.tasks.base import ImageSource, Loaded, Metadata, Note, Prediction, PredictOptions, StateReader
from sightline.tasks.sequences.config import Config
from sightline.tasks.sequences.evaluate import evaluate
from sightline.tasks.sequences.model import open_file
from sightline.tasks.sequences.task import Sequences
from sightline.util.errors import InputError

__all__ = ["evaluate", "make", "open", "predict"]


def make(config: Config, placement: Placement, note: Note) -> Sequences:
    """The task of a run."""
    return Sequences(config.data, config.model, config.loss, placement)


def open(path: Path, metadata: Metadata, read: StateReader) -> Loaded:
    """The model in a file with a card."""
    model, card = open_file(path, metadata, read)
    return Loaded(model, card, None, card.classes, path, "sequences")


def predict(loaded: Loaded, images: Iterable[ImageSource], options: PredictOptions) -> Iterator[Prediction]:
    """Models of sequences take no images."""
    raise InputError(f"{loaded.path}: a model of sequences, not of images; use `sightline eval`")
