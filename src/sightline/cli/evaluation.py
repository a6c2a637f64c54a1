"""Weights of any task opened for a command."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.util.errors import InputError

if TYPE_CHECKING:
    from sightline.tasks.base import Loaded


def load(source: str, model: str | None = None, model_args: dict[str, Any] | None = None) -> "Loaded":
    """The model in a run folder or file of weights."""
    from sightline.cli.classifier import load_classifier
    from sightline.engine.checkpoint import find_weights
    from sightline.models.weights.reader import read_metadata, read_state
    from sightline.tasks.base import Loaded
    from sightline.tasks.classification.preprocess import make_transform
    from sightline.tasks.registry import task_of

    if not source.strip():
        raise InputError("--checkpoint: the path is empty; give a run folder, or a file of weights")
    path = find_weights(Path(source)) if Path(source).is_dir() else Path(source)
    metadata = read_metadata(path)
    spec = task_of(metadata)
    if spec is None or spec.name == "classification":
        one = load_classifier(source, model, model_args)
        return Loaded(
            one.model, one.card, make_transform(one.card), one.card.classes, one.path, "classification", one.title
        )
    if model is not None or model_args:
        raise InputError(f"--model, --model-args: for classifiers; leave them out for {spec.name}")
    return spec.open(path, metadata, lambda: read_state(path))
