"""Classification as an entry of `sightline.tasks.registry`."""

from sightline.data.order import Placement
from sightline.tasks.base import Note
from sightline.tasks.classification.config import Config
from sightline.tasks.classification.task import Classification


def make(config: Config, placement: Placement, note: Note) -> Classification:
    """The task of a run."""
    return Classification(config.data, config.model, config.augment, config.loss, config.distill, placement, note)
