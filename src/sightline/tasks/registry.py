"""The tasks, by the name that a recipe gives as `task`. Their modules are imported on first use.

spec = TASKS[config.task]
task = spec.make(config, placement)      # to train
scores = spec.evaluate(loaded, data, section, options)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from sightline.tasks import base
from sightline.tasks.classification.config import Config as ClassificationConfig
from sightline.tasks.config import RunConfig
from sightline.tasks.dense.config import MAIN
from sightline.tasks.detection.config import Config as DetectionConfig
from sightline.tasks.linearize.config import Config as LinearizeConfig
from sightline.tasks.segmentation.config import Config as SegmentationConfig
from sightline.tasks.sequences.config import Config as SequencesConfig

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

    from sightline.data.order import Placement
    from sightline.data.splits import Split
    from sightline.models.weights.reader import Weights


@dataclass(frozen=True)
class TaskSpec:
    """A task.

    Args:
        name: the key `task` of a recipe.
        config: the dataclass of a whole run.
        best: the metric, in percent, by which the best weights are chosen.
        shown: metrics in the line of an epoch, with their display names.
        without: options of `sightline.evaluate` that are not for it.
        unit: what is trained on, for rates and counts.
        counted: what the confusion matrix counts; by default `unit`.
        pictures: whether a report shows attention maps of `examples`.
        exports: whether its models are one graph from images to outputs, which `sightline.export` can write.
        any_size: whether its models see images of any size, as they come.
        makes: the task of the models that it trains, if that is another one.
        module: has the functions of the methods below.
    """

    name: str
    config: type[RunConfig]
    best: str
    shown: Mapping[str, str]
    without: tuple[str, ...]
    unit: str = "images"
    counted: str = ""
    pictures: bool = False
    exports: bool = False
    any_size: bool = False
    makes: str = ""

    @property
    def module(self) -> ModuleType:
        return import_module(f"sightline.tasks.{self.name}.spec")

    def make(self, config: RunConfig, placement: Placement) -> base.Task:
        """The task of a run: data, model and loss put together."""
        return self.module.make(config, placement)

    def open(self, weights: Weights) -> base.Loaded:
        """The model in a file with a card of this task; the message of a `FileError` does not name the file."""
        return self.module.open(weights)

    def read_card(self, metadata: Mapping[str, str]) -> tuple[base.Card, Callable[[Image.Image], Tensor] | None]:
        """The card in the metadata of a file, and the transform that goes with it."""
        return self.module.read_card(metadata)

    def evaluate(
        self, loaded: base.Loaded, data: str | None, section: object | None, options: base.EvalOptions
    ) -> dict[str, base.Scores]:
        """Scores by label set: "usual" always, "real" as well if `options.labels` asks for a second set.

        Args:
            data: path of the data; by default that of `section`.
            section: the section `data` of the run that the weights are from, or None.
        """
        return self.module.evaluate(loaded, data, section, options)

    def predictor(self, loaded: base.Loaded, options: base.PredictOptions) -> base.Predictor:
        """Predicts what is in one image; the model is on the device of the options."""
        return self.module.predictor(loaded, options)

    def examples(self, loaded: base.Loaded, section: object) -> Iterator[tuple[str, Tensor, Image.Image]]:
        """A few images of the evaluation split, of different classes, for attention maps in a report.

        Args:
            section: the section `data` of the run that the weights are from.

        Yields:
            What it is and what the model predicts; the image as the model takes it (channels, height, width); and the
            image to show.

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


DENSE = ("slide", "scales", "flip")
CLASSIFIERS = ("img_size", "labels")
TASKS: dict[str, TaskSpec] = {
    spec.name: spec
    for spec in (
        TaskSpec(
            "classification", ClassificationConfig, "top1", {"top1": "top-1", "top5": "top-5"}, without=DENSE,
            pictures=True, exports=True,
        ),
        TaskSpec(
            "segmentation", SegmentationConfig, "miou", _shown("miou", "macc", "aacc"), without=CLASSIFIERS,
            counted="pixels", exports=True, any_size=True,
        ),
        TaskSpec(
            "detection", DetectionConfig, "box_ap", _shown("box_ap", "mask_ap"), without=(*CLASSIFIERS, *DENSE)
        ),
        TaskSpec(
            "sequences", SequencesConfig, "top1", {"top1": "accuracy"}, without=(*CLASSIFIERS, "limit", *DENSE),
            unit="sequences",
        ),
        TaskSpec(
            "linearize", LinearizeConfig, "agreement", {"agreement": "agreement", "top1": "top-1"}, without=DENSE,
            makes="classification",
        ),
    )
}  # fmt: skip

LABELLED = TASKS["classification"]  # images with one label each: the task of public checkpoints and of studies


def task_of(metadata: Mapping[str, str]) -> TaskSpec | None:
    """The task whose card is in the metadata of a file; None if it has no card, like public checkpoints."""
    if metadata.get("task") in ("segmentation", "detection"):
        return TASKS[metadata["task"]]
    if "sequences" in metadata:
        return TASKS["sequences"]
    return LABELLED if {"model", "classes", "input"} <= metadata.keys() and "task" not in metadata else None
