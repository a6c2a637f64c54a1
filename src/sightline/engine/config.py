"""The typed configuration of a training run: every key, its default, its limits and a line of help.

`sightline.engine.settings` reads it from recipes and command lines and refuses what does not fit. Nothing heavy is
imported here, so that `sightline train --help` stays fast.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Size = int | tuple[int, int]


def entry(default: Any, help: str, *, least: float | None = None, most: float | None = None) -> Any:
    """A key of the configuration with its default; `least` and `most` limit a number, or every number of a tuple."""
    metadata = {"help": help, "least": least, "most": most}
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Data:
    """Where images come from and what they become before augmentation."""

    path: str | None = entry(None, "folder, tar file, WebDataset folder or hfds/NAME; by default the embedded data")
    source: Literal["auto", "folder", "tar", "wds", "hfds", "synthetic"] = entry(
        "auto", "kind of data; auto looks at the path; synthetic needs none and measures speed"
    )
    train_split: str | None = entry(None, "split to train on; by default train")
    val_split: str | None = entry(None, "split to evaluate on; by default val, validation or test")
    class_map: str | None = entry(None, "text file with a class a line, in the order of the labels")
    size: Size | None = entry(None, "pixels: 224, or [384, 640] for height, width; by default the model's", least=1)
    mean: tuple[float, ...] | None = entry(None, "mean of the channels, 0 to 1; by default ImageNet's")
    std: tuple[float, ...] | None = entry(None, "deviation of the channels; by default ImageNet's", least=1e-6)
    interpolation: Literal["bicubic", "bilinear", "nearest", "random"] = entry("bicubic", "resampling of images")
    crop_pct: float | None = entry(None, "share of the side that evaluation keeps; by default the model's",
                                   least=0.01, most=1)  # fmt: skip
    workers: int = entry(2, "loader processes for each training process; 0 loads in the process itself", least=0)
    preload: bool = entry(False, "decode once to uint8 in the memory of the device and augment there, in batches")
    preload_size: Size | None = entry(None, "pixels that preloaded images are kept at; by default data.size", least=1)
    on_error: Literal["stop", "skip"] = entry("stop", "on an unreadable image: stop, or skip, count and report it")
    image_key: str = entry("image", "name of the image in a Hugging Face data set")
    label_key: str = entry("label", "name of the label in a Hugging Face data set")
    limit: int | None = entry(None, "use the first images of every class only, this many", least=1)


@dataclass(frozen=True)
class Model:
    """What is trained."""

    name: str = entry("inline_deit_tiny", "a model of sightline or timm, as `sightline list` shows")
    args: Mapping[str, Any] = entry({}, "arguments of the model, such as {depths: 6, attention: softmax}")
    checkpoint: str | None = entry(
        None, "weights to start from, public or sightline's own; a new classifier if need be"
    )
    pretrained: bool = entry(False, "start from the weights that timm publishes for this model, downloaded")
    drop: float = entry(0.0, "dropout before the classifier", least=0, most=1)
    drop_path: float = entry(0.0, "stochastic depth of the last block", least=0, most=0.99)
    grad_checkpointing: bool = entry(False, "keep only the input of each block: less memory, more time")
    channels_last: bool = entry(False, "keep images as NHWC in memory")
    compile: bool = entry(False, "torch.compile the model")
    compile_mode: str | None = entry(None, "mode of torch.compile, such as max-autotune")


@dataclass(frozen=True)
class Batch:
    """How many images make a step."""

    size: int = entry(1024, "images of one update, over all processes and accumulated parts", least=1)
    accumulate: int = entry(1, "parts that an update is computed in, one after the other", least=1)
    eval_size: int | None = entry(None, "images of one evaluation step, over all processes; by default as in training",
                                  least=1)  # fmt: skip


@dataclass(frozen=True)
class Optim:
    """The optimizer, from timm."""

    name: str = entry("adamw", "optimizer of timm, see timm.optim.list_optimizers()")
    lr: float = entry(5e-4, "learning rate; for a batch of optim.lr_batch where that is given", least=0)
    lr_batch: int | None = entry(None, "scale the rate linearly: lr x batch.size / lr_batch", least=1)
    weight_decay: float = entry(
        0.05, "decay of matrices; 1-d parameters, biases and position tables have none", least=0
    )
    betas: tuple[float, ...] | None = entry(None, "betas of the optimizer; by default its own", least=0, most=1)
    eps: float | None = entry(None, "epsilon of the optimizer; by default its own", least=0)
    momentum: float = entry(0.9, "momentum, for the optimizers that have it", least=0, most=1)
    args: Mapping[str, Any] = entry({}, "further arguments of the optimizer")
    clip: float | None = entry(None, "largest norm of the gradient", least=0)
    clip_mode: Literal["norm", "value", "agc"] = entry("norm", "how gradients are clipped")
    layer_decay: float | None = entry(None, "factor of the rate from a layer to the one before it", least=0, most=1)


@dataclass(frozen=True)
class Schedule:
    """The learning rate over time, from timm; it changes at every update."""

    name: Literal["cosine", "tanh", "step", "multistep", "poly"] = entry("cosine", "form of the schedule")
    epochs: int = entry(300, "epochs of the schedule, warm-up included; cool-down comes on top", least=1)
    warmup_epochs: float = entry(0.0, "epochs over which the rate rises", least=0)
    warmup_lr: float = entry(1e-6, "rate at the very start", least=0)
    min_lr: float = entry(0.0, "rate at the end", least=0)
    cooldown_epochs: int = entry(0, "epochs at the lowest rate", least=0)
    scale_all: bool = entry(False, "scale warmup_lr and min_lr with the batch too, as Swin's recipe does")
    decay_epochs: float = entry(30.0, "epochs between the steps of `step`", least=0)
    decay_rate: float = entry(0.1, "factor of a step", least=0)
    milestones: tuple[int, ...] = entry((), "epochs of the steps of `multistep`", least=0)


@dataclass(frozen=True)
class Augment:
    """What happens to training images."""

    crop: Literal["resized", "padded", "center"] = entry(
        "resized", "random resized crop; random crop after padding by an eighth; or the evaluation's own crop"
    )
    scale: tuple[float, float] = entry((0.08, 1.0), "share of the image that a random resized crop keeps",
                                       least=0.001, most=1)  # fmt: skip
    ratio: tuple[float, float] = entry((0.75, 4 / 3), "width to height of a random resized crop", least=0.01)
    hflip: float = entry(0.5, "probability of a mirror image", least=0, most=1)
    vflip: float = entry(0.0, "probability of turning upside down", least=0, most=1)
    color_jitter: float = entry(0.0, "brightness, contrast and saturation; not beside auto", least=0)
    auto: str | None = entry(None, "RandAugment and relatives in timm's notation, such as rand-m9-mstd0.5-inc1")
    erase: float = entry(0.0, "probability of erasing a rectangle", least=0, most=1)
    erase_mode: Literal["pixel", "rand", "const"] = entry("pixel", "what an erased rectangle is filled with")
    mixup: float = entry(0.0, "alpha of mixup, 0 for none", least=0)
    cutmix: float = entry(0.0, "alpha of cutmix, 0 for none", least=0)
    mix_prob: float = entry(1.0, "probability of mixing a batch", least=0, most=1)
    mix_switch: float = entry(0.5, "probability of cutmix where both are on", least=0, most=1)
    mix_mode: Literal["batch", "pair", "elem"] = entry("batch", "mix with one ratio a batch, a pair or an image")
    mix_off_epoch: int | None = entry(None, "epoch from which nothing is mixed any more", least=0)
    repeats: int = entry(1, "repeated augmentation: an image comes this often in a row of batches", least=1)


@dataclass(frozen=True)
class Loss:
    """What is minimised."""

    name: Literal["cross_entropy", "bce"] = entry("cross_entropy", "softmax cross entropy, or binary a class")
    smoothing: float = entry(0.0, "label smoothing", least=0, most=0.99)


@dataclass(frozen=True)
class Distill:
    """A teacher's logits beside the labels."""

    teacher: str | None = entry(None, "any model of timm or sightline; none by default")
    args: Mapping[str, Any] = entry({}, "arguments of the teacher")
    checkpoint: str | None = entry(None, "weights of the teacher; by default those that timm publishes")
    mode: Literal["soft", "hard"] = entry("soft", "follow the teacher's probabilities, or its first choice")
    weight: float = entry(0.5, "share of the teacher in the loss", least=0, most=1)
    temperature: float = entry(1.0, "temperature of soft distillation", least=0.01)


@dataclass(frozen=True)
class Ema:
    """A running average of the weights, evaluated beside them."""

    decay: float = entry(0.0, "decay of the average for every update, 0 for none", least=0, most=1)
    batch: int | None = entry(None, "the decay is meant for this batch: decay ** (batch.size / ema.batch)", least=1)
    warmup: bool = entry(False, "start with a short average that grows to the decay")


@dataclass(frozen=True)
class Run:
    """Where it runs, what it writes, and when it gives up."""

    folder: str | None = entry(None, "folder of the run; by default runs/NAME-OF-THE-RECIPE, with a number")
    resume: Literal["auto", "never", "must"] = entry(
        "auto", "go on with an unfinished run of the same configuration; never; or fail where there is none"
    )
    seed: int = entry(0, "seed of weights, order and augmentation", least=0)
    device: str = entry("auto", "cpu, cuda, mps; auto takes what there is")
    threads: int | None = entry(None, "threads of the processor for each process; by default all", least=1)
    precision: Literal["no", "fp16", "bf16"] = entry("no", "mixed precision")
    deterministic: bool = entry(False, "only deterministic kernels, also on a GPU; slower")
    eval_every: int = entry(1, "epochs between evaluations; the last one is always evaluated", least=1)
    save_every: int = entry(1, "epochs between checkpoints", least=1)
    save_minutes: float | None = entry(10.0, "minutes between checkpoints inside an epoch; null for none", least=0)
    save_steps: int | None = entry(None, "updates between checkpoints inside an epoch", least=1)
    keep: int = entry(2, "checkpoints to resume from that are kept", least=1)
    skip_nonfinite: int = entry(0, "batches with a non-finite loss or gradient to skip before stopping", least=0)
    max_steps: int | None = entry(None, "stop after this many updates in all", least=1)
    timeout: float = entry(600.0, "seconds that processes wait for each other before they give up", least=1)
    tensorboard: bool = entry(True, "write TensorBoard events")
    report: bool = entry(True, "write figures and the report at the end")
    log_every: int = entry(50, "updates between lines where there is no terminal", least=1)


@dataclass(frozen=True)
class Config:
    """A whole run. A recipe is this as YAML; `base: NAME` in it starts from another recipe."""

    data: Data = field(default_factory=Data)
    model: Model = field(default_factory=Model)
    batch: Batch = field(default_factory=Batch)
    optim: Optim = field(default_factory=Optim)
    schedule: Schedule = field(default_factory=Schedule)
    augment: Augment = field(default_factory=Augment)
    loss: Loss = field(default_factory=Loss)
    distill: Distill = field(default_factory=Distill)
    ema: Ema = field(default_factory=Ema)
    run: Run = field(default_factory=Run)
