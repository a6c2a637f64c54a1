"""Configuration keys that segmentation and detection share, and the names of their scores. Imports nothing heavy."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from sightline.tasks.config import ImageData, Model, RunConfig
from sightline.util.errors import InputError
from sightline.util.names import MAX_SIDE
from sightline.util.schema import Number, Whole, entry

Side = Annotated[Whole, Field(ge=16, le=MAX_SIDE)]  # pixels
CropSide = Annotated[Whole, Field(ge=32, le=MAX_SIDE)]
Crop = CropSide | tuple[CropSide, CropSide]
Width = Annotated[Whole, Field(ge=8, le=2**16)]  # channels
Deviation = Annotated[Number, Field(ge=1e-6)]

# Scores: their keys in files, and their display names.
SEGMENTATION = {"miou": "mIoU", "macc": "mAcc", "aacc": "aAcc"}
DETECTION = {
    f"{kind}_{key}": f"{kind} {name}"
    for kind in ("box", "mask")
    for key, name in (
        ("ap", "AP"), ("ap50", "AP50"), ("ap75", "AP75"), ("ap_small", "AP small"), ("ap_medium", "AP medium"),
        ("ap_large", "AP large"),
    )
}  # fmt: skip
BY_CLASS = {"iou": "IoU", "accuracy": "accuracy", "pixels": "pixels", "box_ap": "box AP", "mask_ap": "mask AP"}
MAIN = {key: (SEGMENTATION | DETECTION)[key] for key in (*SEGMENTATION, "box_ap", "mask_ap")}  # for reports


@dataclass(frozen=True)
class DenseData(ImageData):
    """Images and their annotations."""

    mean: tuple[Number, Number, Number] = entry(
        (0.485, 0.456, 0.406), "mean of the channels, 0 to 1; by default ImageNet's"
    )
    std: tuple[Deviation, Deviation, Deviation] = entry(
        (0.229, 0.224, 0.225), "deviation of the channels; by default ImageNet's"
    )


@dataclass(frozen=True)
class DenseModel(Model):
    """The backbone; a task adds its head."""

    name: str = entry("inline_swin_tiny", "a model of sightline or timm, as `sightline list` shows")
    pretrained: bool = entry(
        False, "download and start from the published weights of this backbone, unless a checkpoint is given"
    )


@dataclass(frozen=True)
class DenseConfig(RunConfig):
    """A run of segmentation or detection."""

    model: DenseModel

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model.args.get("in_chans", 3) != 3:
            raise InputError("model.args: in_chans is 3 for segmentation and detection; leave it out")
