"""Sequences as an entry of `sightline.tasks.registry`."""

from sightline.data.order import Placement
from sightline.tasks.base import Note
from sightline.tasks.sequences.config import Config
from sightline.tasks.sequences.task import Sequences


def make(config: Config, placement: Placement, note: Note) -> Sequences:
    """The task of a run."""
    return Sequences(config.data, config.model, config.loss, placement)
