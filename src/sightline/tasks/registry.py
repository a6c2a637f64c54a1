"""The tasks, by the name that a recipe gives as `task`. Their modules are imported on first use.

spec = TASKS[config.task]
task = spec.make(config, placement, note)      # to train
scores = spec.evaluate(loaded, data, section, options)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from sightline.tasks import base
from sightline.tasks.classification.config import Config as ClassificationConfig
from sightline.tasks.config import RunConfig
from sightline.tasks.dense.config import MAIN
from sightline.tasks.detection.config import Config as DetectionConfig
from sightline.tasks.segmentation.config import Config as SegmentationConfig
from sightline.tasks.sequences.config import Config as SequencesConfig

if TYPE_CHECKING:
    from sightline.data.order import Placement
    from sightline.data.splits import Split


@dataclass(frozen=True)
class TaskSpec:
    """A task.

    Args:
        name: the key `task` of a recipe.
        config: the dataclass of a whole run.
        best: the metric, in percent, by which the best weights are chosen.
        shown: metrics in the line of an epoch, with their display names.
        marks: whether a file with this metadata holds a model of this task.
        unit: what is trained on, for rates and counts.
        counted: what the confusion matrix counts; by default `unit`.
        pictures: whether a report shows attention maps of `examples`.
        module: has the functions of the methods below.
    """

    name: str
    config: type[RunConfig]
    best: str
    shown: Mapping[str, str]
    marks: Callable[[base.Metadata], bool]
    unit: str = "images"
    counted: str = ""
    pictures: bool = False

    @property
    def module(self) -> ModuleType:
        return import_module(f"sightline.tasks.{self.name}.spec")

    def make(self, config: RunConfig, placement: Placement, note: base.Note) -> base.Task:
        """The task of a run: data, model and loss put together."""
        return self.module.make(config, placement, note)

    def open(self, path: Path, metadata: base.Metadata, read: base.StateReader) -> base.Loaded:
        """The model in a file with a card of this task.

        Args:
            path: of the file, for messages and for `Loaded.path`.
            metadata: of the file.
            read: reads its tensors.
        """
        return self.module.open(path, metadata, read)

    def evaluate(
        self, loaded: base.Loaded, data: str | None, section: object | None, options: base.EvalOptions
    ) -> dict[str, base.Scores]:
        """Scores by label set: "usual" always, "real" as well if `options.labels` asks for a second set.

        Args:
            data: path of the data; by default that of `section`.
            section: the section `data` of the run that the weights are from, or None.
        """
        return self.module.evaluate(loaded, data, section, options)

    def predict(
        self, loaded: base.Loaded, images: Iterable[base.ImageSource], options: base.PredictOptions
    ) -> Iterator[base.Prediction]:
        """One result per image, in order; an unreadable one stops, or gives its `error`."""
        return self.module.predict(loaded, images, options)

    def examples(self, loaded: base.Loaded, section: object) -> Iterator[base.Example]:
        """A few images of the evaluation split, of different classes, for attention maps in a report.

        Args:
            section: the section `data` of the run that the weights are from.

        Raises:
            ValueError: there are no images.
        """
        return self.module.examples(loaded, section)

    def images(self, data: str | None, section: object | None) -> Split:
        """The labeled images of the evaluation split, for studies.

        Args:
            data: path of the data, "embedded", or None for that of `section`.
            section: the section `data` of a run, or None.

        Raises:
            ValueError: there are no images, or they have no labels.
        """
        return self.module.images(data, section)


def _shown(*keys: str) -> dict[str, str]:
    return {key: MAIN[key] for key in keys}


TASKS: dict[str, TaskSpec] = {
    spec.name: spec
    for spec in (
        TaskSpec(
            "classification", ClassificationConfig, "top1", {"top1": "top-1", "top5": "top-5"},
            lambda metadata: {"model", "classes", "input"} <= metadata.keys() and "task" not in metadata,
            pictures=True,
        ),
        TaskSpec(
            "segmentation", SegmentationConfig, "miou", _shown("miou", "macc", "aacc"),
            lambda metadata: metadata.get("task") == "segmentation", counted="pixels",
        ),
        TaskSpec(
            "detection", DetectionConfig, "box_ap", _shown("box_ap", "mask_ap"),
            lambda metadata: metadata.get("task") == "detection",
        ),
        TaskSpec(
            "sequences", SequencesConfig, "top1", {"top1": "accuracy"},
            lambda metadata: "sequences" in metadata, unit="sequences",
        ),
    )
}  # fmt: skip

LABELLED = TASKS["classification"]  # images with one label each: the task of public checkpoints and of studies


def task_of(metadata: base.Metadata) -> TaskSpec | None:
    """The task whose card is in the metadata of a file; None if it has no card, like public checkpoints."""
    return next((spec for spec in TASKS.values() if spec.marks(metadata)), None)
