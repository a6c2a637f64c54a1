"""The sections of a run's configuration that all tasks share, with defaults, limits and one line of help per key.

A task adds its own keys and sections (data, model, loss, ...) in its `config.Config`. Nothing heavy is imported here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from sightline.util.errors import InputError, shown
from sightline.util.schema import Amount, Count, Dropout, Name, Natural, Number, Positive, Seed, Share, Workers, entry

BelowOne = Annotated[Amount, Field(lt=1)]


def _two_or_three(betas: tuple[float, ...]) -> tuple[float, ...]:
    if len(betas) not in (2, 3):
        raise ValueError(
            f"expected two numbers, or three for some optimizers, e.g. [0.9, 0.999]; got {shown(list(betas))}"
        )
    return betas


Betas = Annotated[tuple[BelowOne, ...], AfterValidator(_two_or_three)]


@dataclass(frozen=True)
class ImageData:
    """Splits of images, and how they are read."""

    path: str | None = entry(None, "folder, tar file, WebDataset folder or hfds/NAME; by default the embedded data")
    train_split: Name | None = entry(None, "split to train on; by default train")
    val_split: Name | None = entry(None, "split to evaluate on; by default val, validation or test")
    workers: Workers = entry(2, "loader processes per training process; 0 loads in the process itself")
    on_error: Literal["stop", "skip"] = entry(
        "stop", "on an image or annotation that cannot be used: stop, or skip, count and report it"
    )
    limit: Count | None = entry(None, "use only the first N images, of every class for classification")


@dataclass(frozen=True)
class Model:
    """What is trained."""

    name: str = entry("inline_deit_tiny", "a model of sightline or timm, as `sightline list` shows")
    args: Mapping[str, object] = entry({}, "arguments of the model, such as {depths: 6, attention: softmax}")
    checkpoint: str | None = entry(
        None, "weights to start from, public or sightline's own: a file or a run folder; a classifier is replaced if "
        "the classes differ, and segmenters and detectors take the backbone",
    )  # fmt: skip
    drop_path: Dropout = entry(0.0, "stochastic depth of the last block")
    grad_checkpointing: bool = entry(False, "recompute blocks in the backward pass: less memory, more time")
    compile: Literal["auto", "blocks", "graphs", True, False] = entry(
        "auto", "torch.compile the model to train it; auto: on a GPU, with CUDA graphs if all batches have one shape; "
        "blocks: on a GPU, one block for all, which takes seconds; graphs: only CUDA graphs, for short runs",
    )  # fmt: skip
    compile_mode: Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] | None = entry(
        None, "mode of torch.compile; by default as model.compile chooses"
    )


@dataclass(frozen=True)
class Batch:
    """Batch size."""

    size: Count = entry(1024, "images per update, over all processes and micro-batches")
    accumulate: Count = entry(1, "micro-batches per update (gradient accumulation)")
    eval_size: Count | None = entry(None, "images per evaluation step, over all processes; by default as in training")


@dataclass(frozen=True)
class Optim:
    """The optimizer, from timm."""

    name: str = entry("adamw", "timm optimizer; see timm.optim.list_optimizers()")
    lr: Amount = entry(5e-4, "learning rate; for batch size optim.lr_batch if given")
    lr_batch: Count | None = entry(None, "scale the rate linearly: lr x batch.size / lr_batch")
    weight_decay: Amount = entry(0.05, "weight decay; not applied to 1-d parameters, biases and position tables")
    betas: Betas | None = entry(None, "betas of the optimizer; by default its own")
    eps: Amount | None = entry(None, "epsilon of the optimizer; by default its own")
    momentum: Share = entry(0.9, "momentum, for the optimizers that have it")
    args: Mapping[str, object] = entry({}, "additional arguments of the optimizer")
    clip: Positive | None = entry(None, "gradient clipping threshold; none by default")
    clip_mode: Literal["norm", "value", "agc"] = entry("norm", "gradient clipping mode")
    layer_decay: Annotated[Positive, Field(le=1)] | None = entry(None, "layer-wise learning-rate decay")


@dataclass(frozen=True)
class Schedule:
    """The learning rate over time, from timm; it changes at every update."""

    name: Literal["cosine", "linear", "tanh", "step", "multistep", "poly"] = entry("cosine", "learning-rate schedule")
    epochs: Count = entry(300, "epochs of the schedule, including warm-up, excluding cool-down")
    warmup_epochs: Amount = entry(0.0, "warm-up epochs")
    warmup_lr: Amount = entry(1e-6, "initial learning rate of the warm-up")
    min_lr: Amount = entry(0.0, "final learning rate")
    cooldown_epochs: Natural = entry(0, "epochs at min_lr after the schedule")
    scale_all: bool = entry(False, "scale warmup_lr and min_lr with the batch too, as Swin's recipe does")
    decay_epochs: Positive = entry(30.0, "epochs between the steps of `step`")
    decay_rate: Amount = entry(0.1, "factor of a step")
    milestones: tuple[Natural, ...] = entry((), "epochs of the steps of `multistep`")


@dataclass(frozen=True)
class Ema:
    """A running average of the weights, which is evaluated in their place."""

    decay: BelowOne = entry(0.0, "EMA decay per update, 0 for none")
    batch: Count | None = entry(None, "batch size that the decay is for: decay ** (batch.size / ema.batch)")
    warmup: bool = entry(False, "increase the decay gradually at the start")


@dataclass(frozen=True)
class Run:
    """Device, outputs and limits of a run."""

    folder: str | None = entry(None, "folder of the run; by default runs/NAME-OF-THE-RECIPE, with a number")
    resume: Literal["auto", "never", "must"] = entry(
        "auto", "auto: resume an unfinished run of the same configuration; must: fail if there is none"
    )
    seed: Seed = entry(0, "seed of weights, order and augmentation")
    device: str = entry("auto", "cpu, cuda, mps; auto takes the GPU if there is one")
    threads: Annotated[Count, Field(le=4096)] | None = entry(None, "CPU threads per process; by default all")
    precision: Annotated[
        Literal["no", "fp16", "bf16"],
        BeforeValidator(lambda value: "no" if value is False else value),  # as YAML reads it
    ] = entry("no", "mixed precision; full precision on a CPU without bfloat16")
    deterministic: bool = entry(False, "only deterministic kernels, also on a GPU; slower")
    eval_every: Count = entry(1, "epochs between evaluations; the last one is always evaluated")
    save_every: Count = entry(1, "epochs between checkpoints")
    save_minutes: Amount | None = entry(10.0, "minutes between checkpoints inside an epoch; null for none")
    save_steps: Count | None = entry(None, "updates between checkpoints inside an epoch")
    skip_nonfinite: Natural = entry(0, "batches with a non-finite loss or gradient to skip before stopping")
    max_steps: Count | None = entry(None, "stop after this many updates in total")
    timeout: Annotated[Number, Field(ge=1, le=10**7)] = entry(
        600.0, "seconds before a process gives up waiting for the others"
    )
    tensorboard: bool = entry(True, "write TensorBoard events")
    report: bool = entry(True, "write figures and the report at the end")
    log_every: Count = entry(50, "updates between log lines without a terminal")


@dataclass(frozen=True)
class RunConfig:
    """The configuration of a whole run; a task narrows `task`, `data` and `model`, and adds its own sections.

    `__post_init__` rejects values that are valid by themselves and contradict each other.
    """

    __pydantic_config__: ClassVar[ConfigDict] = {
        "extra": "forbid", "allow_inf_nan": False, "coerce_numbers_to_str": True,
    }  # fmt: skip
    task: str
    data: object
    model: Model
    batch: Batch = field(default_factory=Batch)
    optim: Optim = field(default_factory=Optim)
    schedule: Schedule = field(default_factory=Schedule)
    ema: Ema = field(default_factory=Ema)
    run: Run = field(default_factory=Run)

    def __post_init__(self) -> None:
        warmup, epochs = self.schedule.warmup_epochs, self.schedule.epochs
        if warmup > epochs:
            raise InputError(
                f"schedule.warmup_epochs: {warmup:g} is longer than schedule.epochs={epochs}; give at most {epochs}"
            )
        if self.schedule.name == "linear" and warmup == epochs:
            raise InputError(
                f"schedule.warmup_epochs: the warm-up takes all {epochs} epochs of schedule.epochs, and a linear "
                f"schedule falls after it; give the warm-up fewer"
            )
