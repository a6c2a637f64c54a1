"""Detection as an entry of `sightline.tasks.registry`."""

from sightline.data.order import Placement
from sightline.tasks.base import Note
from sightline.tasks.detection.config import Config
from sightline.tasks.detection.task import Detection


def make(config: Config, placement: Placement, note: Note) -> Detection:
    """The task of a run."""
    return Detection(config.data, config.model, config.augment, config.loss, config.test, placement)
