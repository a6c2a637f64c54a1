"""Optimizer, schedule and averaged weights, all from timm."""

from collections.abc import Mapping
from inspect import signature
from typing import Any

import torch
from timm.optim import Muon, create_optimizer_v2, get_optimizer_info, list_optimizers
from timm.scheduler import create_scheduler_v2
from timm.scheduler.scheduler import Scheduler
from timm.utils import ModelEmaV3
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from sightline.engine.muon import BatchedMuon
from sightline.tasks.config import RunConfig
from sightline.util.errors import InputError, shown
from sightline.util.files import reason
from sightline.util.names import nearest

FUSED = (Adam, AdamW, SGD)  # have one kernel for all parameters
VARIANTS = ("fused", "foreach", "differentiable")  # arguments that choose between their implementations


def scaled_lr(config: RunConfig) -> float:
    """The learning rate for the batch of this run."""
    factor = config.batch.size / config.optim.lr_batch if config.optim.lr_batch else 1.0
    return config.optim.lr * factor


def make_optimizer(model: nn.Module, config: RunConfig) -> Optimizer:
    """The optimizer; 1-d parameters and those that the model names are not decayed."""
    optim = config.optim
    given = {"eps": optim.eps, "betas": optim.betas}
    options = {**optim.args, **{key: value for key, value in given.items() if value is not None}}
    if optim.name not in list_optimizers():
        remedy = nearest(optim.name, list_optimizers(), "timm.optim.list_optimizers() shows all")
        raise InputError(f"optim.name: no optimizer {optim.name!r}; {remedy}")
    info = get_optimizer_info(optim.name)
    if optim.betas is not None and callable(info.opt_class):  # a text if it needs a package that is not installed
        usual = signature(info.opt_class).parameters.get("betas")
        if usual is None or len(optim.betas) != len(usual.default):
            expected = "has none; leave them out" if usual is None else f"takes as many as in {list(usual.default)}"
            raise InputError(f"optim.betas: got {list(optim.betas)}, but {optim.name} {expected}")
    if info.opt_class in FUSED and not options.keys() & set(VARIANTS):
        options["fused"] = True
    options |= {"lr": scaled_lr(config), "weight_decay": optim.weight_decay, "momentum": optim.momentum}
    if twice := [key for key in optim.args if key in (*given, "lr", "weight_decay", "momentum")]:
        raise InputError(f"optim.args: {twice[0]} is a key of its own; give optim.{twice[0]}")
    try:
        _try_out(optim.name, options, next(model.parameters()).device)
        made = create_optimizer_v2(model, opt=optim.name, layer_decay=optim.layer_decay, **options)
    except InputError:
        raise
    except Exception as error:
        values = {"args": optim.args, "betas": optim.betas, "name": optim.name}
        key, value = next((key, value) for key, value in values.items() if value)
        raise InputError(
            f"optim.{key}: {optim.name} cannot work with {shown(value)} ({reason(error)}); change it or leave it out"
        ) from error
    return BatchedMuon(made.param_groups, **made.defaults) if type(made) is Muon else made


def _try_out(name: str, options: Mapping[str, Any], device: torch.device) -> None:
    """Make an update of a matrix and a vector: many optimizers look at their arguments no earlier."""
    parameters = [nn.Parameter(torch.ones(shape, device=device)) for shape in ((4, 4), (4,))]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    create_optimizer_v2(parameters, opt=name, **options).step()


def make_schedule(optimizer: Optimizer, config: RunConfig, steps: int) -> tuple[Scheduler, int]:
    """The schedule, stepped at every update, and the number of epochs including cool-down.

    Args:
        steps: updates per epoch.
    """
    schedule = config.schedule
    factor = scaled_lr(config) / config.optim.lr if schedule.scale_all and config.optim.lr else 1.0
    linear = schedule.name == "linear"  # to min_lr from the end of the warm-up on
    made, epochs = create_scheduler_v2(
        optimizer,
        sched="poly" if linear else schedule.name,
        num_epochs=schedule.epochs - schedule.warmup_epochs if linear else schedule.epochs,
        warmup_prefix=linear,
        decay_epochs=schedule.decay_epochs,
        decay_milestones=schedule.milestones or (90, 180, 270),
        cooldown_epochs=schedule.cooldown_epochs,
        warmup_epochs=schedule.warmup_epochs,
        warmup_lr=schedule.warmup_lr * factor,
        min_lr=schedule.min_lr * factor,
        decay_rate=1.0 if linear else schedule.decay_rate,
        step_on_epochs=False,
        updates_per_epoch=steps,
    )
    return made, int(epochs)


def make_average(model: nn.Module, config: RunConfig) -> ModelEmaV3 | None:
    """The running average of the weights, or None."""
    ema = config.ema
    if not ema.decay:
        return None
    decay = ema.decay ** (config.batch.size / ema.batch) if ema.batch else ema.decay
    return Average(model, decay=decay, use_warmup=ema.warmup)


class Average(ModelEmaV3):
    """timm's average. It looks its tensors up once, as the state dicts of a small model take longer than an update."""

    _pairs: tuple[list[Tensor], list[Tensor], list[tuple[Tensor, Tensor]]] | None = None

    def apply_update_(self, model: nn.Module, decay: float) -> None:
        if self._pairs is None:
            pairs = list(zip(self.module.state_dict().values(), model.state_dict().values(), strict=True))
            floats = [pair for pair in pairs if pair[0].is_floating_point()]
            others = [pair for pair in pairs if not pair[0].is_floating_point()]
            self._pairs = [own for own, _ in floats], [new for _, new in floats], others
        averages, values, others = self._pairs
        torch._foreach_lerp_(averages, values, weight=1.0 - decay)
        for own, new in others:
            own.copy_(new)
