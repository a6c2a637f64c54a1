"""Configuration of a classification run: data, model, augmentation, loss, teacher.

Nothing heavy is imported here, so that `sightline train --help` stays fast.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from sightline.tasks import config
from sightline.util.errors import InputError, shown
from sightline.util.schema import Amount, Count, Dropout, Name, Natural, Number, Range, Share, Side, entry

Size = Side | tuple[Side, Side]
# timm skips what it does not understand in its notation, so that rand-mX would train without its X.
NUMBER = r"\d{1,3}(\.\d{1,6})?"
POLICY = re.compile(
    rf"rand(-(m\d{{1,3}}|n\d{{1,3}}|p{NUMBER}|mstd{NUMBER}|mmax\d{{1,3}}|inc\d|t(3a|3aw|weights)))*"
    rf"|augmix(-(m\d{{1,3}}|w\d{{1,3}}|d\d{{1,3}}|a{NUMBER}|b\d|mstd{NUMBER}))*"
    rf"|(original|originalr|v0|v0r|3a)(-mstd{NUMBER})?"
)


def _check_policy(text: str) -> str:
    if not POLICY.fullmatch(text):
        raise ValueError(f"timm does not know {shown(text)}; give one such as rand-m9-mstd0.5-inc1")
    return text


Policy = Annotated[str, AfterValidator(_check_policy)]


@dataclass(frozen=True)
class Data(config.ImageData):
    """Source and preprocessing of images."""

    source: Literal["auto", "folder", "tar", "wds", "hfds", "synthetic"] = entry(
        "auto", "type of data; auto detects it from the path; synthetic needs no data and measures speed"
    )
    class_map: str | None = entry(None, "text file with one class per line, in the order of the labels")
    size: Size | None = entry(None, "pixels: 224, or [384, 640] for height, width; by default the model's")
    train_size: Size | None = entry(None, "pixels of training crops; by default data.size, which is evaluated")
    mean: tuple[Number, ...] | None = entry(None, "mean of the channels, 0 to 1; by default ImageNet's")
    std: tuple[Annotated[Number, Field(ge=1e-6)], ...] | None = entry(
        None, "deviation of the channels; by default ImageNet's"
    )
    interpolation: Literal["bicubic", "bilinear", "nearest", "random"] = entry("bicubic", "resampling of images")
    crop_pct: Annotated[Share, Field(ge=0.01)] | None = entry(
        None, "fraction of the side kept by the evaluation crop; by default the model's"
    )
    preload: Literal["auto", True, False] = entry(
        False, "decode once, keep as uint8 in device memory, and augment whole batches there; auto: up to 4 GiB"
    )
    preload_size: Size | None = entry(None, "size of preloaded images in pixels; by default data.size")
    preload_whole: bool = entry(True, "random resized crops of preloaded images up to 3:2 or 2:3, not of their middle")
    image_key: Name = entry("image", "name of the image in a Hugging Face dataset")
    label_key: Name = entry("label", "name of the label in a Hugging Face dataset")


@dataclass(frozen=True)
class Model(config.Model):
    """The model to train."""

    pretrained: bool = entry(
        False, "download and start from the published weights of this model, unless a checkpoint is given"
    )
    drop: Annotated[Amount, Field(lt=1)] = entry(0.0, "dropout before the classifier")
    channels_last: bool = entry(False, "use the channels-last (NHWC) memory format")


@dataclass(frozen=True)
class Augment:
    """Augmentation of training images."""

    crop: Literal["resized", "padded", "center"] = entry(
        "resized", "random resized crop; random crop after padding by an eighth; or the evaluation crop"
    )
    scale: Range[Annotated[Share, Field(ge=0.001)]] = entry((0.08, 1.0), "area fraction of a random resized crop")
    ratio: Range[Annotated[Number, Field(ge=0.01)]] = entry((0.75, 4 / 3), "aspect ratio of a random resized crop")
    resample: Literal["bilinear", "bicubic"] = entry("bilinear", "resampling of crops with data.preload")
    hflip: Share = entry(0.5, "probability of a horizontal flip")
    vflip: Share = entry(0.0, "probability of a vertical flip")
    color_jitter: Amount = entry(0.0, "brightness, contrast and saturation; not together with auto")
    auto: Policy | None = entry(None, "AutoAugment or RandAugment in timm's notation, such as rand-m9-mstd0.5-inc1")
    erase: Share = entry(0.0, "probability of erasing a rectangle")
    erase_mode: Literal["pixel", "rand", "const"] = entry("pixel", "what an erased rectangle is filled with")
    mixup: Amount = entry(0.0, "alpha of mixup, 0 for none")
    cutmix: Amount = entry(0.0, "alpha of cutmix, 0 for none")
    mix_prob: Share = entry(1.0, "probability of mixing a batch")
    mix_switch: Share = entry(0.5, "probability of cutmix if both are on")
    mix_mode: Literal["batch", "pair", "elem"] = entry("batch", "mix with one ratio per batch, pair or image")
    mix_off_epoch: Natural | None = entry(None, "epoch from which images are no longer mixed")
    repeats: Count = entry(1, "repeated augmentation: consecutive copies of each image")
    progressive: tuple[Annotated[Share, Field(ge=0.1)], ...] = entry(
        (), "shares of data.size, one after the other in equal parts of the epochs, e.g. [0.75, 0.875, 1]"
    )


@dataclass(frozen=True)
class Loss:
    """The loss."""

    name: Literal["cross_entropy", "bce"] = entry("cross_entropy", "softmax cross entropy, or binary per class")
    smoothing: Dropout = entry(0.0, "label smoothing")


@dataclass(frozen=True)
class Distill:
    """A teacher's logits next to the labels."""

    teacher: str | None = entry(None, "any model of timm or sightline; none by default")
    args: Mapping[str, object] = entry({}, "arguments of the teacher")
    checkpoint: str | None = entry(None, "weights of the teacher; by default timm's published ones")
    mode: Literal["soft", "hard"] = entry("soft", "match the teacher's probabilities, or its top class")
    weight: Share = entry(0.5, "weight of the teacher in the loss")
    temperature: Annotated[Number, Field(ge=0.01)] = entry(1.0, "temperature of soft distillation")


@dataclass(frozen=True)
class Config(config.RunConfig):
    """A classification run. A recipe is this as YAML; `base: NAME` in it starts from another recipe."""

    task: Literal["classification"] = "classification"
    data: Data = field(default_factory=Data)
    model: Model = field(default_factory=Model)
    augment: Augment = field(default_factory=Augment)
    loss: Loss = field(default_factory=Loss)
    distill: Distill = field(default_factory=Distill)

    def __post_init__(self) -> None:
        super().__post_init__()
        distill = self.distill
        if distill.teacher is None and (distill.checkpoint is not None or distill.args):
            key = "checkpoint" if distill.checkpoint is not None else "args"
            raise InputError(f"distill.{key}: there is no teacher for it; name one in distill.teacher")
