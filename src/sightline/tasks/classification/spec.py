"""Classification as an entry of `sightline.tasks.registry`."""

from collections.abc import Mapping
from functools import partial

from sightline.models.weights.reader import Weights
from sightline.tasks.base import Loaded
from sightline.tasks.card import ModelCard
from sightline.tasks.classification.data import images
from sightline.tasks.classification.evaluate import evaluate
from sightline.tasks.classification.predict import examples, predictor
from sightline.tasks.classification.task import Classification
from sightline.tasks.create import create, restore
from sightline.tasks.preprocess import Transform, make_transform
from sightline.util.errors import FileError

__all__ = ["evaluate", "examples", "images", "make", "open", "predictor", "read_card"]

make = Classification  # the task of a run


def read_card(metadata: Mapping[str, str]) -> tuple[ModelCard, Transform]:
    """The card in the metadata of a file that has one, and its transform."""
    card = ModelCard.from_metadata(metadata)
    assert card is not None
    return card, make_transform(card)


def open(weights: Weights) -> Loaded:
    """The classifier in a file with a card: every key of the weights must fit the model that the card names."""
    card, transform = read_card(weights.metadata)
    model = restore(card, weights.state, partial(create, card.name, card.arguments))
    count = int(model.num_classes)  # type: ignore[arg-type]
    if not count:
        raise FileError("these weights have no classifier; give a checkpoint that has one")
    if card.classes and len(card.classes) != count:
        raise FileError(f"{len(card.classes)} names for {count} classes; save the weights again")
    return Loaded(model, card, transform, card.classes, weights.path, "classification")
