"""Classification as an entry of `sightline.tasks.registry`."""

from functools import partial

from sightline.models.weights.reader import Weights
from sightline.tasks.base import Loaded
from sightline.tasks.card import ModelCard
from sightline.tasks.classification.data import images
from sightline.tasks.classification.evaluate import evaluate
from sightline.tasks.classification.predict import examples, predictor
from sightline.tasks.classification.task import Classification
from sightline.tasks.create import create, restore
from sightline.tasks.preprocess import make_transform
from sightline.util.errors import FileError

__all__ = ["evaluate", "examples", "images", "make", "open", "predictor"]

make = Classification  # the task of a run


def open(weights: Weights) -> Loaded:
    """The classifier in a file with a card: every key of the weights must fit the model that the card names."""
    card = ModelCard.from_metadata(weights.metadata)
    assert card is not None
    model = restore(card, weights.state, partial(create, card.name, card.arguments))
    count = int(model.num_classes)  # type: ignore[arg-type]
    if not count:
        raise FileError("these weights have no classifier; give a checkpoint that has one")
    if card.classes and len(card.classes) != count:
        raise FileError(f"{len(card.classes)} names for {count} classes; save the weights again")
    return Loaded(model, card, make_transform(card), card.classes, weights.path, "classification")
