"""Segmentation as an entry of `sightline.tasks.registry`."""

from sightline.data.order import Placement
from sightline.tasks.base import Note
from sightline.tasks.segmentation.config import Config
from sightline.tasks.segmentation.task import Segmentation


def make(config: Config, placement: Placement, note: Note) -> Segmentation:
    """The task of a run."""
    return Segmentation(config.data, config.model, config.augment, config.loss, config.test, placement)
