"""Configuration of a detection run. Imports nothing heavy."""

from dataclasses import dataclass, field
from typing import Literal

from sightline.tasks.config import RunConfig, check_range
from sightline.tasks.dense.config import DenseData, DenseModel, check_dense
from sightline.tasks.options import entry
from sightline.util.errors import InputError


@dataclass(frozen=True)
class Data(DenseData):
    """Images and COCO instances."""

    short: int = entry(800, "pixels of the short side", least=16)
    long: int = entry(1333, "maximum pixels of the long side", least=16)
    empty: Literal["drop", "keep"] = entry("drop", "training images without objects: drop or keep them")


@dataclass(frozen=True)
class Model(DenseModel):
    """Backbone and detector."""

    head: Literal["mask_rcnn", "retinanet", "cascade_mask_rcnn", "faster_rcnn"] = entry("mask_rcnn", "detector")
    channels: int = entry(256, "width of the feature pyramid", least=8)
    samples: int = entry(512, "proposals per image that the second stage is trained on", least=4)
    anchor: float | None = entry(
        None,
        "side of the anchors in cells of their level; by default 8, for RetinaNet 4 at three scales",
        least=0.5,
    )


@dataclass(frozen=True)
class Augment:
    """Augmentation of training images, their boxes and masks."""

    resize: Literal["fixed", "multiscale", "jitter"] = entry(
        "fixed", "data.short / data.long; a random short side of augment.sizes; or large-scale jitter"
    )
    sizes: tuple[int, ...] = entry((480, 512, 544, 576, 608, 640, 672, 704, 736, 768, 800), "short sides of multiscale",
                                   least=16)  # fmt: skip
    scale: tuple[float, float] = entry((0.1, 2.0), "random scale of large-scale jitter", least=0.01, most=20)
    crop: int | tuple[int, int] = entry(1024, "pixels of the crop of large-scale jitter", least=32)
    hflip: float = entry(0.5, "probability of a horizontal flip", least=0, most=1)


@dataclass(frozen=True)
class Loss:
    """Weights of the parts of the detector's loss."""

    classes: float = entry(1.0, "of the classes", least=0)
    boxes: float = entry(1.0, "of the boxes", least=0)
    masks: float = entry(1.0, "of the masks", least=0)


@dataclass(frozen=True)
class Inference:
    """What counts as a detection."""

    score: float = entry(0.05, "minimum score", least=0, most=1)
    nms: float = entry(0.5, "IoU above which the weaker of two boxes of a class is dropped", least=0, most=1)
    detections: int = entry(100, "maximum number per image", least=1)


@dataclass(frozen=True)
class Config(RunConfig):
    """A detection run."""

    task: Literal["detection"] = entry("detection", "what the model is trained for")
    data: Data = field(default_factory=Data)
    model: Model = field(default_factory=Model)
    augment: Augment = field(default_factory=Augment)
    loss: Loss = field(default_factory=Loss)
    test: Inference = field(default_factory=Inference)

    def check(self) -> None:
        """Raise InputError if values contradict each other."""
        super().check()
        check_range("augment.scale", self.augment.scale)
        check_dense(self.model)
        if not self.augment.sizes:
            raise InputError("augment.sizes: it is empty; give short sides such as [480, 800]")
