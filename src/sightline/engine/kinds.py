"""The tasks that the engine trains, by the name that a recipe gives as `task`.

What a task is to the engine is written down in docs/architecture.md. Tasks are imported when they are made.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from sightline.data.order import Place
from sightline.engine.checkpoint import find_weights
from sightline.engine.config import AnyConfig, Config, DetectionConfig, SegmentationConfig, SequenceConfig
from sightline.tasks.dense.names import MAIN

Note = Callable[[str, int, int], None]
Section = TypeVar("Section", bound=Any)


@dataclass(frozen=True)
class Kind:
    """A task as the engine sees it.

    Args:
        make: configuration, place and note -> the task.
        evaluate: task, model and options of the engine -> an evaluation, which iterates over `(name, value)`.
        best: the metric, in percent, by which the best weights are chosen.
        shown: metrics in the line of an epoch, with the words for them.
        unit: what is trained on, for rates and counts.
    """

    make: Callable[[Any, Place, Note], Any]
    evaluate: Callable[..., Any]
    best: str
    shown: Mapping[str, str]
    unit: str = "images"


def _classification(config: Config, place: Place, note: Note) -> Any:
    from sightline.tasks.classification.task import Classification

    model, distill = with_weights(config.model), with_weights(config.distill)
    return Classification(config.data, model, config.augment, config.loss, distill, place, note)


def _evaluate_classification(task: Any, model: Any, *, gather: Any, device: Any, **options: Any) -> Any:
    from sightline.engine.evaluate import evaluate

    return evaluate(model, task.evaluation(), len(task.card.classes), device=device, **options)


def _segmentation(config: SegmentationConfig, place: Place, note: Note) -> Any:
    from sightline.tasks.segmentation.task import Segmentation

    return Segmentation(config.data, with_weights(config.model), config.augment, config.loss, config.test, place)


def _detection(config: DetectionConfig, place: Place, note: Note) -> Any:
    from sightline.tasks.detection.task import Detection

    return Detection(config.data, with_weights(config.model), config.augment, config.loss, config.test, place)


def _evaluate_dense(task: Any, model: Any, **options: Any) -> Any:
    return task.evaluate(model, **options)


def _sequences(config: SequenceConfig, place: Place, note: Note) -> Any:
    from sightline.tasks.sequences.task import Sequences

    return Sequences(config.data, with_weights(config.model), config.loss, place)


def _words(*keys: str) -> dict[str, str]:
    return {key: MAIN[key] for key in keys}


KINDS: dict[str, Kind] = {
    "classification": Kind(_classification, _evaluate_classification, "top1", {"top1": "top-1", "top5": "top-5"}),
    "segmentation": Kind(_segmentation, _evaluate_dense, "miou", _words("miou", "macc", "aacc")),
    "detection": Kind(_detection, _evaluate_dense, "box_ap", _words("box_ap", "mask_ap")),
    "sequences": Kind(_sequences, _evaluate_classification, "top1", {"top1": "accuracy"}, unit="sequences"),
}


def kind_of(config: AnyConfig) -> Kind:
    """The kind of a run."""
    return KINDS[config.task]


def with_weights(section: Section) -> Section:
    """A section of a model with a file of weights where it names a run folder."""
    if section.checkpoint is None or not Path(section.checkpoint).is_dir():
        return section
    return replace(section, checkpoint=str(find_weights(Path(section.checkpoint))))
