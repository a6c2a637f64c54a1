"""The configuration of a training run: one dataclass per task, made of the sections below and the task's own.

`sightline.engine.settings` reads it from recipes and command lines and rejects what does not fit. Nothing heavy is
imported here.
"""

from sightline.tasks.config import Batch, Ema, Optim, Run, RunConfig, Schedule
from sightline.tasks.registry import TASKS

__all__ = ["CONFIGS", "AnyConfig", "Batch", "Ema", "Optim", "Run", "Schedule"]

AnyConfig = RunConfig
CONFIGS: dict[str, type[RunConfig]] = {name: spec.config for name, spec in TASKS.items()}
