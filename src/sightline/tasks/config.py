"""The sections of a run's configuration that all tasks share, with defaults, limits and one line of help per key.

A task adds its own sections (data, model, loss, ...) in its `config.Config`. Nothing heavy is imported here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from sightline.tasks.options import entry
from sightline.util.errors import InputError


@dataclass(frozen=True)
class Batch:
    """Batch size."""

    size: int = entry(1024, "images per update, over all processes and micro-batches", least=1)
    accumulate: int = entry(1, "micro-batches per update (gradient accumulation)", least=1)
    eval_size: int | None = entry(None, "images per evaluation step, over all processes; by default as in training",
                                  least=1)  # fmt: skip


@dataclass(frozen=True)
class Optim:
    """The optimizer, from timm."""

    name: str = entry("adamw", "timm optimizer; see timm.optim.list_optimizers()")
    lr: float = entry(5e-4, "learning rate; for batch size optim.lr_batch if given", least=0)
    lr_batch: int | None = entry(None, "scale the rate linearly: lr x batch.size / lr_batch", least=1)
    weight_decay: float = entry(
        0.05, "weight decay; not applied to 1-d parameters, biases and position tables", least=0
    )
    betas: tuple[float, ...] | None = entry(None, "betas of the optimizer; by default its own", least=0, below=1)
    eps: float | None = entry(None, "epsilon of the optimizer; by default its own", least=0)
    momentum: float = entry(0.9, "momentum, for the optimizers that have it", least=0, most=1)
    args: Mapping[str, object] = entry({}, "additional arguments of the optimizer")
    clip: float | None = entry(None, "gradient clipping threshold; none by default", above=0)
    clip_mode: Literal["norm", "value", "agc"] = entry("norm", "gradient clipping mode")
    layer_decay: float | None = entry(None, "layer-wise learning-rate decay", above=0, most=1)


@dataclass(frozen=True)
class Schedule:
    """The learning rate over time, from timm; it changes at every update."""

    name: Literal["cosine", "linear", "tanh", "step", "multistep", "poly"] = entry("cosine", "learning-rate schedule")
    epochs: int = entry(300, "epochs of the schedule, including warm-up, excluding cool-down", least=1)
    warmup_epochs: float = entry(0.0, "warm-up epochs", least=0)
    warmup_lr: float = entry(1e-6, "initial learning rate of the warm-up", least=0)
    min_lr: float = entry(0.0, "final learning rate", least=0)
    cooldown_epochs: int = entry(0, "epochs at min_lr after the schedule", least=0)
    scale_all: bool = entry(False, "scale warmup_lr and min_lr with the batch too, as Swin's recipe does")
    decay_epochs: float = entry(30.0, "epochs between the steps of `step`", above=0)
    decay_rate: float = entry(0.1, "factor of a step", least=0)
    milestones: tuple[int, ...] = entry((), "epochs of the steps of `multistep`", least=0)


@dataclass(frozen=True)
class Ema:
    """A running average of the weights, which is evaluated in their place."""

    decay: float = entry(0.0, "EMA decay per update, 0 for none", least=0, below=1)
    batch: int | None = entry(None, "batch size that the decay is for: decay ** (batch.size / ema.batch)", least=1)
    warmup: bool = entry(False, "increase the decay gradually at the start")


@dataclass(frozen=True)
class Run:
    """Device, outputs and limits of a run."""

    folder: str | None = entry(None, "folder of the run; by default runs/NAME-OF-THE-RECIPE, with a number")
    resume: Literal["auto", "never", "must"] = entry(
        "auto", "auto: resume an unfinished run of the same configuration; must: fail if there is none"
    )
    seed: int = entry(0, "seed of weights, order and augmentation", least=0, most=2**63 - 1)
    device: str = entry("auto", "cpu, cuda, mps; auto takes the GPU if there is one")
    threads: int | None = entry(None, "CPU threads per process; by default all", least=1,
                                 most=4096)  # fmt: skip
    precision: Literal["no", "fp16", "bf16"] = entry("no", "mixed precision")
    deterministic: bool = entry(False, "only deterministic kernels, also on a GPU; slower")
    eval_every: int = entry(1, "epochs between evaluations; the last one is always evaluated", least=1)
    save_every: int = entry(1, "epochs between checkpoints", least=1)
    save_minutes: float | None = entry(10.0, "minutes between checkpoints inside an epoch; null for none", least=0)
    save_steps: int | None = entry(None, "updates between checkpoints inside an epoch", least=1)
    skip_nonfinite: int = entry(0, "batches with a non-finite loss or gradient to skip before stopping", least=0)
    max_steps: int | None = entry(None, "stop after this many updates in total", least=1)
    timeout: float = entry(600.0, "seconds before a process gives up waiting for the others", least=1, most=10**7)
    tensorboard: bool = entry(True, "write TensorBoard events")
    report: bool = entry(True, "write figures and the report at the end")
    log_every: int = entry(50, "updates between log lines without a terminal", least=1)


class ModelSection(Protocol):
    """What the engine reads in the section `model` of any task."""

    @property
    def name(self) -> str: ...

    @property
    def checkpoint(self) -> str | None: ...

    @property
    def compile(self) -> bool: ...

    @property
    def compile_mode(self) -> str | None: ...


@dataclass(frozen=True)
class RunConfig:
    """The configuration of a whole run; a task narrows `task`, `data` and `model`, and adds its own sections."""

    task: str
    data: object
    model: ModelSection
    batch: Batch = field(default_factory=Batch)
    optim: Optim = field(default_factory=Optim)
    schedule: Schedule = field(default_factory=Schedule)
    ema: Ema = field(default_factory=Ema)
    run: Run = field(default_factory=Run)

    def check(self) -> None:
        """Raise InputError if values that are valid by themselves contradict each other."""
        warmup, epochs = self.schedule.warmup_epochs, self.schedule.epochs
        if warmup > epochs:
            raise InputError(
                f"schedule.warmup_epochs: {warmup:g} is longer than schedule.epochs={epochs}; give at most as many"
            )
        if self.schedule.name == "linear" and warmup == epochs:
            raise InputError(
                f"schedule.warmup_epochs: the warm-up takes all {epochs} epochs of schedule.epochs, and a linear "
                f"schedule falls after it; give the warm-up fewer"
            )


def check_range(key: str, values: tuple[float, float]) -> None:
    """Reject a range whose lower end is above its upper end."""
    low, high = values
    if low > high:
        raise InputError(f"{key}: [{low:g}, {high:g}] is reversed; give [{high:g}, {low:g}]")
