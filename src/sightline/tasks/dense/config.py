"""Configuration keys that segmentation and detection share, and the names of their scores. Imports nothing heavy."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sightline.tasks.options import entry
from sightline.util.errors import InputError

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
class DenseData:
    """Images and their annotations."""

    path: str | None = entry(None, "folder of the data")
    train_split: str | None = entry(None, "split to train on; by default train")
    val_split: str | None = entry(None, "split to evaluate on; by default val, validation or test")
    mean: tuple[float, float, float] = entry(
        (0.485, 0.456, 0.406), "mean of the channels, 0 to 1; by default ImageNet's"
    )
    std: tuple[float, float, float] = entry(
        (0.229, 0.224, 0.225), "deviation of the channels; by default ImageNet's", least=1e-6
    )
    workers: int = entry(2, "loader processes per training process; 0 loads in the process itself", least=0)
    on_error: Literal["stop", "skip"] = entry(
        "stop", "on an image or annotation that cannot be used: stop, or skip, count and report it"
    )
    limit: int | None = entry(None, "use only the first N images", least=1)


@dataclass(frozen=True)
class DenseModel:
    """The backbone."""

    name: str = entry("inline_swin_tiny", "a model of sightline or timm, as `sightline list` shows")
    args: Mapping[str, Any] = entry({}, "arguments of the backbone, such as {attention: softmax}")
    checkpoint: str | None = entry(
        None, "initial weights of the backbone: a classifier, public or sightline's own, or the backbone inside a "
        "segmenter or detector; a file or a run folder",
    )  # fmt: skip
    pretrained: bool = entry(False, "download and start from timm's published weights of this backbone")
    drop_path: float = entry(0.0, "stochastic depth of the last block", least=0, most=0.99)
    grad_checkpointing: bool = entry(False, "recompute blocks in the backward pass: less memory, more time")
    compile: bool = entry(False, "torch.compile the model")
    compile_mode: str | None = entry(None, "mode of torch.compile, such as max-autotune")


def check_dense(model: DenseModel) -> None:
    """Reject backbones for images that are not in color."""
    if model.args.get("in_chans", 3) != 3:
        raise InputError("model.args: in_chans is 3 for segmentation and detection; leave it out")
