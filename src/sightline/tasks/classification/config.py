"""Configuration of a classification run: data, model, augmentation, loss, teacher.

Nothing heavy is imported here, so that `sightline train --help` stays fast.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from sightline.tasks.config import RunConfig, check_range
from sightline.tasks.options import entry
from sightline.util.errors import InputError


@dataclass(frozen=True)
class Data:
    """Source and preprocessing of images."""

    path: str | None = entry(None, "folder, tar file, WebDataset folder or hfds/NAME; by default the embedded data")
    source: Literal["auto", "folder", "tar", "wds", "hfds", "synthetic"] = entry(
        "auto", "type of data; auto detects it from the path; synthetic needs no data and measures speed"
    )
    train_split: str | None = entry(None, "split to train on; by default train")
    val_split: str | None = entry(None, "split to evaluate on; by default val, validation or test")
    class_map: str | None = entry(None, "text file with one class per line, in the order of the labels")
    size: int | tuple[int, int] | None = entry(
        None, "pixels: 224, or [384, 640] for height, width; by default the model's", least=1
    )
    mean: tuple[float, ...] | None = entry(None, "mean of the channels, 0 to 1; by default ImageNet's")
    std: tuple[float, ...] | None = entry(None, "deviation of the channels; by default ImageNet's", least=1e-6)
    interpolation: Literal["bicubic", "bilinear", "nearest", "random"] = entry("bicubic", "resampling of images")
    crop_pct: float | None = entry(None, "fraction of the side kept by the evaluation crop; by default the model's",
                                   least=0.01, most=1)  # fmt: skip
    workers: int = entry(2, "loader processes per training process; 0 loads in the process itself", least=0,
                         most=1024)  # fmt: skip
    preload: bool = entry(False, "decode once, keep as uint8 in device memory, and augment whole batches there")
    preload_size: int | tuple[int, int] | None = entry(
        None, "size of preloaded images in pixels; by default data.size", least=1
    )
    on_error: Literal["stop", "skip"] = entry("stop", "on an unreadable image: stop, or skip, count and report it")
    image_key: str = entry("image", "name of the image in a Hugging Face dataset")
    label_key: str = entry("label", "name of the label in a Hugging Face dataset")
    limit: int | None = entry(None, "use only the first N images per class", least=1)


@dataclass(frozen=True)
class Model:
    """The model to train."""

    name: str = entry("inline_deit_tiny", "a model of sightline or timm, as `sightline list` shows")
    args: Mapping[str, object] = entry({}, "arguments of the model, such as {depths: 6, attention: softmax}")
    checkpoint: str | None = entry(
        None, "weights to start from, public or sightline's own; the classifier is replaced if the classes differ"
    )
    pretrained: bool = entry(False, "download and start from timm's published weights of this model")
    drop: float = entry(0.0, "dropout before the classifier", least=0, below=1)
    drop_path: float = entry(0.0, "stochastic depth of the last block", least=0, most=0.99)
    grad_checkpointing: bool = entry(False, "recompute blocks in the backward pass: less memory, more time")
    channels_last: bool = entry(False, "use the channels-last (NHWC) memory format")
    compile: bool = entry(False, "torch.compile the model")
    compile_mode: Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] | None = entry(
        None, "mode of torch.compile"
    )


@dataclass(frozen=True)
class Augment:
    """Augmentation of training images."""

    crop: Literal["resized", "padded", "center"] = entry(
        "resized", "random resized crop; random crop after padding by an eighth; or the evaluation crop"
    )
    scale: tuple[float, float] = entry((0.08, 1.0), "area fraction of a random resized crop",
                                       least=0.001, most=1)  # fmt: skip
    ratio: tuple[float, float] = entry((0.75, 4 / 3), "aspect ratio of a random resized crop", least=0.01)
    hflip: float = entry(0.5, "probability of a horizontal flip", least=0, most=1)
    vflip: float = entry(0.0, "probability of a vertical flip", least=0, most=1)
    color_jitter: float = entry(0.0, "brightness, contrast and saturation; not together with auto", least=0)
    auto: str | None = entry(None, "AutoAugment or RandAugment in timm's notation, such as rand-m9-mstd0.5-inc1")
    erase: float = entry(0.0, "probability of erasing a rectangle", least=0, most=1)
    erase_mode: Literal["pixel", "rand", "const"] = entry("pixel", "what an erased rectangle is filled with")
    mixup: float = entry(0.0, "alpha of mixup, 0 for none", least=0)
    cutmix: float = entry(0.0, "alpha of cutmix, 0 for none", least=0)
    mix_prob: float = entry(1.0, "probability of mixing a batch", least=0, most=1)
    mix_switch: float = entry(0.5, "probability of cutmix if both are on", least=0, most=1)
    mix_mode: Literal["batch", "pair", "elem"] = entry("batch", "mix with one ratio per batch, pair or image")
    mix_off_epoch: int | None = entry(None, "epoch from which images are no longer mixed", least=0)
    repeats: int = entry(1, "repeated augmentation: consecutive copies of each image", least=1)


@dataclass(frozen=True)
class Loss:
    """The loss."""

    name: Literal["cross_entropy", "bce"] = entry("cross_entropy", "softmax cross entropy, or binary per class")
    smoothing: float = entry(0.0, "label smoothing", least=0, most=0.99)


@dataclass(frozen=True)
class Distill:
    """A teacher's logits next to the labels."""

    teacher: str | None = entry(None, "any model of timm or sightline; none by default")
    args: Mapping[str, object] = entry({}, "arguments of the teacher")
    checkpoint: str | None = entry(None, "weights of the teacher; by default timm's published ones")
    mode: Literal["soft", "hard"] = entry("soft", "match the teacher's probabilities, or its top class")
    weight: float = entry(0.5, "weight of the teacher in the loss", least=0, most=1)
    temperature: float = entry(1.0, "temperature of soft distillation", least=0.01)


@dataclass(frozen=True)
class Config(RunConfig):
    """A classification run. A recipe is this as YAML; `base: NAME` in it starts from another recipe."""

    task: Literal["classification"] = entry("classification", "what the model is trained for")
    data: Data = field(default_factory=Data)
    model: Model = field(default_factory=Model)
    augment: Augment = field(default_factory=Augment)
    loss: Loss = field(default_factory=Loss)
    distill: Distill = field(default_factory=Distill)

    def check(self) -> None:
        """Raise InputError if values contradict each other."""
        super().check()
        check_range("augment.scale", self.augment.scale)
        check_range("augment.ratio", self.augment.ratio)
        distill = self.distill
        if distill.teacher is None and (distill.checkpoint is not None or distill.args):
            key = "checkpoint" if distill.checkpoint is not None else "args"
            raise InputError(f"distill.{key}: there is no teacher for it; name one with --distill.teacher")
