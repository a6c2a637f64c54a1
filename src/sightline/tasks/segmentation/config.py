"""Configuration of a segmentation run. Imports nothing heavy."""

from dataclasses import dataclass, field
from typing import Literal

from sightline.tasks.config import RunConfig, check_range
from sightline.tasks.dense.config import DenseData, DenseModel, check_dense
from sightline.tasks.options import entry
from sightline.util.errors import InputError


@dataclass(frozen=True)
class Data(DenseData):
    """Images and masks whose pixels are class numbers."""

    classes: str | None = entry(None, "file with the classes, JSON or one per line; by default the one in the folder")
    ignore: int | None = entry(None, "mask value of ignored pixels; by default that of the classes file, or 255",
                               least=0, most=65535)  # fmt: skip
    zero: Literal["auto", "class", "ignore"] = entry(
        "auto", "mask value 0: the first class, or ignored, with classes starting at 1; auto recognizes ADE20K"
    )
    size: int | tuple[int, int] = entry(512, "pixels of a training crop, 512 or [height, width]", least=32)
    short: int | None = entry(None, "pixels of the short side before random scaling and in evaluation; by default "
                              "unchanged", least=16)  # fmt: skip
    long: int = entry(2048, "maximum pixels of the long side", least=16)


@dataclass(frozen=True)
class Model(DenseModel):
    """Backbone and decoder."""

    head: Literal["upernet", "semantic_fpn"] = entry("upernet", "decoder")
    channels: int = entry(512, "width of the decoder", least=8)
    drop: float = entry(0.1, "dropout before the pixel classifier", least=0, most=1)


@dataclass(frozen=True)
class Augment:
    """Augmentation of training images and their masks."""

    scale: tuple[float, float] = entry((0.5, 2.0), "random scale", least=0.05, most=20)
    most_of_one: float = entry(
        0.75, "maximum share of one class in a crop; otherwise another crop is tried", least=0, most=1
    )
    hflip: float = entry(0.5, "probability of a horizontal flip", least=0, most=1)
    colour: bool = entry(True, "random brightness, contrast, saturation and hue")


@dataclass(frozen=True)
class Loss:
    """Cross entropy of the pixels."""

    auxiliary: float = entry(0.4, "weight of an auxiliary head on the third stage; 0 for none", least=0)
    smoothing: float = entry(0.0, "label smoothing", least=0, most=0.99)


@dataclass(frozen=True)
class Inference:
    """How images are evaluated, in training too."""

    mode: Literal["whole", "slide"] = entry("whole", "the whole image, or sliding windows of data.size")
    stride: int | tuple[int, int] | None = entry(None, "pixels between windows; by default two thirds of them",
                                                 least=1)  # fmt: skip
    scales: tuple[float, ...] = entry((1.0,), "scales to average over", least=0.1, most=8)
    flip: bool = entry(False, "average over the horizontal flip too")


@dataclass(frozen=True)
class Config(RunConfig):
    """A segmentation run."""

    task: Literal["segmentation"] = entry("segmentation", "what the model is trained for")
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
        if not self.test.scales:
            raise InputError("test.scales: it is empty; give factors such as [1.0]")
