"""Configuration of a segmentation run. Imports nothing heavy."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from sightline.tasks.dense.config import Crop, DenseConfig, DenseData, DenseModel, Side, Width
from sightline.util.schema import Amount, Count, Dropout, Natural, Number, Range, Several, Share, entry


@dataclass(frozen=True)
class Data(DenseData):
    """Images and masks whose pixels are class numbers."""

    classes: str | None = entry(None, "file with the classes, JSON or one per line; by default the one in the folder")
    ignore: Annotated[Natural, Field(le=65535)] | None = entry(
        None, "mask value of ignored pixels; by default that of the classes file, or 255"
    )
    zero: Literal["auto", "class", "ignore"] = entry(
        "auto", "mask value 0: the first class, or ignored, with classes starting at 1; auto recognizes ADE20K"
    )
    size: Crop = entry(512, "pixels of a training crop, 512 or [height, width]")
    short: Side | None = entry(
        None, "pixels of the short side before random scaling and in evaluation; by default unchanged"
    )
    long: Side = entry(2048, "maximum pixels of the long side")


@dataclass(frozen=True)
class Model(DenseModel):
    """Backbone and decoder."""

    head: Literal["upernet", "semantic_fpn"] = entry("upernet", "decoder")
    channels: Width = entry(512, "width of the decoder")
    drop: Share = entry(0.1, "dropout before the pixel classifier")


@dataclass(frozen=True)
class Augment:
    """Augmentation of training images and their masks."""

    scale: Range[Annotated[Number, Field(ge=0.05, le=20)]] = entry((0.5, 2.0), "random scale")
    most_of_one: Share = entry(0.75, "maximum share of one class in a crop; otherwise another crop is tried")
    hflip: Share = entry(0.5, "probability of a horizontal flip")
    colour: bool = entry(True, "random brightness, contrast, saturation and hue")


@dataclass(frozen=True)
class Loss:
    """Cross entropy of the pixels."""

    auxiliary: Amount = entry(0.4, "weight of an auxiliary head on the third stage; 0 for none")
    smoothing: Dropout = entry(0.0, "label smoothing")


@dataclass(frozen=True)
class Inference:
    """How images are evaluated, in training too."""

    mode: Literal["whole", "slide"] = entry("whole", "the whole image, or sliding windows of data.size")
    stride: Count | tuple[Count, Count] | None = entry(None, "pixels between windows; by default two thirds of them")
    scales: Several[Annotated[Number, Field(ge=0.1, le=8)]] = entry((1.0,), "scales to average over")
    flip: bool = entry(False, "average over the horizontal flip too")


@dataclass(frozen=True)
class Config(DenseConfig):
    """A segmentation run."""

    task: Literal["segmentation"] = "segmentation"
    data: Data = field(default_factory=Data)
    model: Model = field(default_factory=Model)
    augment: Augment = field(default_factory=Augment)
    loss: Loss = field(default_factory=Loss)
    test: Inference = field(default_factory=Inference)
