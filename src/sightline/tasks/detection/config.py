"""Configuration of a detection run. Imports nothing heavy."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from sightline.tasks.dense.config import Crop, DenseConfig, DenseData, DenseModel, Side, Width
from sightline.util.schema import Amount, Count, Number, Range, Several, Share, Whole, entry

Scale = Annotated[Number, Field(ge=0.01, le=20)]


@dataclass(frozen=True)
class Data(DenseData):
    """Images and COCO instances."""

    short: Side = entry(800, "pixels of the short side")
    long: Side = entry(1333, "maximum pixels of the long side")
    empty: Literal["drop", "keep"] = entry("drop", "training images without objects: drop or keep them")


@dataclass(frozen=True)
class Model(DenseModel):
    """Backbone and detector."""

    head: Literal["mask_rcnn", "retinanet", "cascade_mask_rcnn", "faster_rcnn"] = entry("mask_rcnn", "detector")
    channels: Width = entry(256, "width of the feature pyramid")
    samples: Annotated[Whole, Field(ge=4, le=2**16)] = entry(
        512, "proposals per image that the second stage is trained on"
    )
    anchor: Annotated[Number, Field(ge=0.5)] | None = entry(
        None, "side of the anchors in cells of their level; by default 8, for RetinaNet 4 at three scales"
    )


@dataclass(frozen=True)
class Augment:
    """Augmentation of training images, their boxes and masks."""

    resize: Literal["fixed", "multiscale", "jitter"] = entry(
        "fixed", "data.short / data.long; a random short side of augment.sizes; or large-scale jitter"
    )
    sizes: Several[Side] = entry((480, 512, 544, 576, 608, 640, 672, 704, 736, 768, 800), "short sides of multiscale")
    scale: Range[Scale] = entry((0.1, 2.0), "random scale of large-scale jitter")
    crop: Crop = entry(1024, "pixels of the crop of large-scale jitter")
    hflip: Share = entry(0.5, "probability of a horizontal flip")


@dataclass(frozen=True)
class Loss:
    """Weights of the parts of the detector's loss."""

    classes: Amount = entry(1.0, "of the classes")
    boxes: Amount = entry(1.0, "of the boxes")
    masks: Amount = entry(1.0, "of the masks")


@dataclass(frozen=True)
class Inference:
    """What counts as a detection."""

    score: Share = entry(0.05, "minimum score")
    nms: Share = entry(0.5, "IoU above which the weaker of two boxes of a class is dropped")
    detections: Count = entry(100, "maximum number per image")


@dataclass(frozen=True)
class Config(DenseConfig):
    """A detection run."""

    task: Literal["detection"] = "detection"
    data: Data = field(default_factory=Data)
    model: Model = field(default_factory=Model)
    augment: Augment = field(default_factory=Augment)
    loss: Loss = field(default_factory=Loss)
    test: Inference = field(default_factory=Inference)
