"""A trained classifier from a file or a run folder, for the commands that use one."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.cli.options import UsageError

if TYPE_CHECKING:
    from torch import nn

    from sightline.tasks.card import ModelCard


@dataclass(frozen=True)
class Classifier:
    """A model in evaluation mode, its card, the name to print, the file, and whether the classes have names."""

    model: "nn.Module"
    card: "ModelCard"
    title: str
    path: Path
    named: bool

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters())


def load_classifier(source: str, name: str | None = None, args: dict[str, Any] | None = None) -> Classifier:
    """Read a run folder, a file that `sightline train` or `convert` wrote, or a public checkpoint as published.

    Args:
        source: a file of weights, or a run folder, of which the best weights are taken.
        name, args: the model, where the file does not say it and its shapes leave it open.

    Raises:
        ValueError: it cannot be read, or has no classifier.
    """
    from sightline.models.weights.reader import find_weights, read_metadata
    from sightline.models.zoo import VARIANTS
    from sightline.tasks.card import CardError, ModelCard

    if not source.strip():
        raise UsageError("--checkpoint: the path is empty; give a run folder, or a file of weights")
    path = find_weights(Path(source)) if Path(source).is_dir() else Path(source)
    metadata = read_metadata(path)
    reject_others(path, metadata)
    try:
        card = ModelCard.from_metadata(metadata)
    except CardError as error:
        raise CardError(f"{path}: {error}") from error
    if card is not None and card.name not in VARIANTS and name is None:
        model, title = _foreign(path, card), card.name
    else:
        model, title, card = _own(path, card, name, args or {})
    if not model.num_classes:
        raise UsageError(f"{path}: these weights have no classifier; give a checkpoint that has one")
    named = bool(card.classes)
    if named and len(card.classes) != model.num_classes:
        raise UsageError(f"{path}: {len(card.classes)} names for {model.num_classes} classes; write the weights again")
    return Classifier(model.eval(), card, title, path, named)


def reject_others(path: str | Path, metadata: Mapping[str, str]) -> None:
    """Reject weights whose metadata names another task than classification.

    Raises:
        UsageError: names the file and the commands that take it.
    """
    if "sequences" in metadata:
        raise UsageError(f"{path}: a model of sequences, not of images; `sightline eval` takes it")
    what = {"segmentation": "a segmenter", "detection": "a detector"}.get(metadata.get("task", ""))
    if what is not None:
        raise UsageError(f"{path}: {what}, not a classifier; `sightline eval` and `sightline predict` take it")


def _own(path: Path, card: "ModelCard | None", name: str | None, args: dict[str, Any]) -> "tuple[Any, str, ModelCard]":
    """A model of sightline: identified by what the file says of itself, else by its shapes."""
    from sightline.models.weights.checkpoint import Checkpoint, build, choose, prefix_errors
    from sightline.models.weights.reader import read_weights

    file = Checkpoint.of(read_weights(path))
    with prefix_errors(path):
        choice = choose(file, name, args)
        model = build(file, choice)
    identity = choice.identity
    return model, str(identity), card or _public_card(identity.name, identity.kwargs, model)


def _public_card(name: str, args: dict[str, Any], model: Any) -> "ModelCard":
    """A card for weights that carry none: the published input, and ImageNet's classes where there are 1000."""
    from timm.data import resolve_model_data_config

    from sightline.data.labels import imagenet_classes
    from sightline.tasks.card import ModelCard

    usual = resolve_model_data_config(model)
    channels = model.in_chans
    mean, std = (
        tuple(usual[key]) if len(usual[key]) == channels else (sum(usual[key]) / len(usual[key]),) * channels
        for key in ("mean", "std")
    )
    classes = imagenet_classes() if model.num_classes == len(imagenet_classes()) else ()
    size = (channels, *model.img_size)
    return ModelCard(name, args, classes, size, mean, std, usual["interpolation"], usual["crop_pct"])


def _foreign(path: Path, card: "ModelCard") -> Any:
    """A model of timm that was trained here, named by its card."""
    import torch

    from sightline.models.weights.fit import MismatchError, compare
    from sightline.models.weights.reader import read_state
    from sightline.tasks.create import create

    for key in card.arguments:  # a file must not name other files to read
        if key.startswith(("pretrained", "checkpoint", "cache")):
            raise UsageError(f"{path}: its card asks for {key!r}, which is not of the model; write the weights again")
    state = read_state(path)
    with torch.device("meta"):  # before memory is taken: a forged card ends here
        mismatch = compare(state, create(card.name, card.arguments))
    if mismatch:
        raise MismatchError(f"{path}: the weights do not fit {card.name}", mismatch)
    model: Any = create(card.name, card.arguments)
    model.load_state_dict(state)
    return model
