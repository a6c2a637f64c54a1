"""Open a checkpoint without a card as a classifier, identified by the shapes of its tensors."""

import warnings

from timm.data import resolve_model_data_config

from sightline.data.labels import imagenet_classes
from sightline.models.base import Arguments, VisionModel
from sightline.models.weights.checkpoint import Checkpoint, build, choose, prefix_errors
from sightline.models.weights.identify import Identity
from sightline.models.weights.reader import Weights
from sightline.tasks.base import Loaded
from sightline.tasks.card import ModelCard
from sightline.tasks.preprocess import make_transform
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
    card = ModelCard.from_metadata(weights.metadata) or card_of(choice.identity, model)
    return Loaded(
        model.eval(), card, make_transform(card), card.classes, weights.path, "classification", str(choice.identity)
    )


def card_of(identity: Identity, model: VisionModel) -> ModelCard:
    """The published input, and ImageNet's classes if there are as many."""
    usual = resolve_model_data_config(model)
    channels, known = model.in_chans, imagenet_classes()
    mean, std = (
        tuple(usual[key]) if len(usual[key]) == channels else (sum(usual[key]) / len(usual[key]),) * channels
        for key in ("mean", "std")
    )
    classes = known if model.num_classes == len(known) else ()
    size = (channels, *model.img_size)
    return ModelCard(
        identity.name, identity.kwargs, classes, size, mean, std, usual["interpolation"], usual["crop_pct"]
    )
