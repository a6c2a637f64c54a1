"""Open a checkpoint without a card as a classifier, identified by the shapes of its tensors."""

import warnings

from sightline.data.labels import imagenet_classes
from sightline.models.base import Arguments
from sightline.models.weights.checkpoint import Checkpoint, build, choose, prefix_errors
from sightline.models.weights.reader import Weights
from sightline.tasks.base import Loaded
from sightline.tasks.card import ModelCard
from sightline.tasks.preprocess import card_of, make_transform
from sightline.util.errors import FileError, WeightsWarning


def open_public(weights: Weights, name: str | None = None, args: Arguments | None = None) -> Loaded:
    """Identify a published checkpoint, or one of our own without a card, and load it.

    Args:
        weights: the content of the file.
        name, args: the variant and its arguments, if shapes do not show them.

    Raises:
        InputError: there is no such model or argument.
        FileError: the weights are of no known family, do not fit, or have no classifier.
    """
    file = Checkpoint.of(weights)
    with prefix_errors(weights.path):
        choice = choose(file, name, args)
        model = build(file, choice)
    if not model.num_classes:
        raise FileError(f"{weights.path}: these weights have no classifier; give a checkpoint that has one")
    if choice.guessed_heads:
        warnings.warn(
            f"{weights.path}: nothing shows the number of heads; taken as {choice.guessed_heads}. If they were trained "
            f"with another number, pass it as num_heads in model_args",
            WeightsWarning,
            stacklevel=3,
        )
    identity, known = choice.identity, imagenet_classes()
    classes = known if model.num_classes == len(known) else ()
    card = ModelCard.from_metadata(weights.metadata) or card_of(
        identity.name, identity.kwargs, model, classes, model.in_chans, model.img_size
    )
    return Loaded(model.eval(), card, make_transform(card), card.classes, weights.path, "classification", str(identity))
