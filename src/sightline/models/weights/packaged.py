"""Weights that come with the package, so that a model classifies from the first minute, without a network."""

from pathlib import Path

from sightline.util.errors import InputError

FOLDER = Path(__file__).parent / "files"
DEFAULT = "inline_vit_tiny"  # what commands use without a checkpoint
LICENCE = "Apache-2.0"  # of all of them


def packaged(name: str) -> Path | None:
    """The file with the weights of a model; None if the package has none."""
    path = FOLDER / f"{name}.safetensors"
    return path if path.is_file() else None


def default_weights() -> Path:
    """The weights of the default model.

    Raises:
        InputError: this copy of the package is without them.
    """
    path = packaged(DEFAULT)
    if path is None:
        raise InputError("checkpoint: this copy of sightline has no weights; give a run folder or a file of weights")
    return path
