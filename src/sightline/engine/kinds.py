"""The tasks that the engine trains, by the name that a recipe gives as `task`. They are imported when they are made."""

from collections.abc import Callable
from typing import Any

from sightline.engine.config import AnyConfig, Config, SequenceConfig
from sightline.tasks.order import Place

Note = Callable[[str, int, int], None]


def _classification(config: Config, place: Place, note: Note) -> Any:
    from sightline.tasks.classification.task import Classification

    return Classification(config.data, config.model, config.augment, config.loss, config.distill, place, note)


def _sequences(config: SequenceConfig, place: Place, note: Note) -> Any:
    from sightline.tasks.sequences.task import Sequences

    return Sequences(config.data, config.model, config.loss, place)


KINDS: dict[str, Callable[[Any, Place, Note], Any]] = {
    "classification": _classification,
    "sequences": _sequences,
}


def make_task(config: AnyConfig, place: Place, note: Note) -> Any:
    """The task of a run."""
    return KINDS[config.task](config, place, note)
