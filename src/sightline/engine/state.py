"""Everything that a run resumes from: progress, weights, averaged weights, optimizer and loss scaler.

Nested states, such as an optimizer's, become flat tensors and JSON: nothing is pickled.
"""

from copy import deepcopy
from dataclasses import asdict, dataclass, field
from typing import Any, cast

import torch
from pydantic import FiniteFloat, TypeAdapter
from timm.utils import ModelEmaV3
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from sightline.engine.checkpoint import Saved, State
from sightline.engine.records import Count
from sightline.util.documents import check
from sightline.util.errors import FileError
from sightline.util.text import one_line

GATHER = StateDictOptions(full_state_dict=True, cpu_offload=True)
SCATTER = StateDictOptions(full_state_dict=True)
TENSOR, ITEMS, TUPLE, NUMBER = "$tensor", "$items", "$tuple", "$number"
SPECIAL = ("nan", "inf", "-inf")  # JSON has no such numbers
DAMAGE = (LookupError, RuntimeError, TypeError, ValueError, AttributeError, ArithmeticError)


@dataclass
class Progress:
    """How far a run has come.

    Args:
        epoch, batch: the next epoch and the next update in it; batch is the number of updates per epoch once only the
            evaluation is left.
        step: updates so far, skipped ones included.
        logged: epochs with a line in the metrics.
        loss_sum, losses: of the updates of this epoch so far.
        skipped: updates skipped because of non-finite numbers.
        best, best_epoch: the best evaluation.
        broken: messages about examples that could not be read.
        seconds: of training and evaluation before the last start.
    """

    epoch: Count = 0
    batch: Count = 0
    step: Count = 0
    logged: Count = 0
    loss_sum: FiniteFloat = 0.0
    losses: Count = 0
    skipped: Count = 0
    best: FiniteFloat | None = None
    best_epoch: Count | None = None
    broken: list[str] = field(default_factory=list)
    seconds: FiniteFloat = 0.0

    @property
    def mean_loss(self) -> float | None:
        """Mean over the updates of this epoch so far."""
        return self.loss_sum / self.losses if self.losses else None

    @property
    def settled(self) -> bool:
        """Whether every update so far belongs to an epoch with a line in the metrics."""
        return not self.batch or self.logged > self.epoch

    def next_epoch(self) -> None:
        self.epoch, self.batch, self.loss_sum, self.losses = self.epoch + 1, 0, 0.0, 0


def is_sharded(model: nn.Module) -> bool:
    """Whether every process holds only a shard of each parameter, as under FSDP.

    The parameters do not always show it: after a forward pass they are whole.
    """
    return isinstance(model, FSDPModule) or any(isinstance(parameter, DTensor) for parameter in model.parameters())


def full_weights(model: nn.Module) -> State:
    """The whole weights. For a sharded model all processes must call this; only rank 0 gets them."""
    if not is_sharded(model):
        return dict(model.state_dict())
    return cast(State, get_model_state_dict(model, options=GATHER))


def capture(
    progress: Progress,
    model: nn.Module,
    average: ModelEmaV3 | None,
    optimizer: Optimizer,
    scaler: GradScaler | None,
) -> tuple[State, State, dict[str, object]]:
    """The weights to use, and the tensors and the record to resume from.

    The averaged weights, if any, are the ones to use; the model's own then join the tensors. For a sharded model all
    processes must call this; only rank 0 gets the result.
    """
    tensors: State = {}
    weights = full_weights(model)
    if average is not None:
        tensors = {f"model/{key}": value for key, value in weights.items()}
        weights = dict(average.module.state_dict())
    record: dict[str, object] = asdict(progress)
    inner = getattr(optimizer, "optimizer", optimizer)
    state = get_optimizer_state_dict(model, inner, options=GATHER) if is_sharded(model) else inner.state_dict()
    record["optimizer"] = _pack(state, "optimizer", tensors)
    record["scaler"] = None if scaler is None else _pack(scaler.state_dict(), "scaler", tensors)
    return weights, tensors, record


def restore(
    saved: Saved, model: nn.Module, average: ModelEmaV3 | None, optimizer: Optimizer, scaler: GradScaler | None
) -> Progress:
    """Load a checkpoint into the model, its average, the optimizer and the scaler.

    Raises:
        FileError: it is damaged, or belongs to another model or optimizer.
    """
    before_logged = {"logged": saved.record.get("epoch")}  # of checkpoints without it
    progress = check(TypeAdapter(Progress), before_logged | saved.record, saved.path)
    try:
        own = {key.removeprefix("model/"): value for key, value in saved.tensors.items() if key.startswith("model/")}
        weights = dict(own if average is not None else saved.weights)
        state: Any = _unpack(saved.record["optimizer"], saved.tensors)
        inner = getattr(optimizer, "optimizer", optimizer)
        before = [dict(group) for group in inner.param_groups]
        if is_sharded(model):
            set_model_state_dict(model, cast(dict[str, Any], weights), options=SCATTER)
            set_optimizer_state_dict(model, inner, state, options=SCATTER)
            _check_optimizer(inner, before)
        else:
            inner.load_state_dict(deepcopy(state))
            _check_optimizer(inner, before)
            _try_update(inner)
            model.load_state_dict(weights)
            inner.load_state_dict(state)
        if average is not None:
            average.module.load_state_dict(saved.weights)
        if scaler is not None and saved.record["scaler"] is not None:
            scaler.load_state_dict(cast(dict[str, Any], _unpack(saved.record["scaler"], saved.tensors)))
    except torch.OutOfMemoryError:
        raise
    except DAMAGE as error:
        raise FileError(f"{saved.path}: belongs to another run ({one_line(error, 200)})") from error
    return progress


def _check_optimizer(optimizer: Optimizer, before: list[dict[str, Any]]) -> None:
    """Reject options that are not numbers where those of this run are, and states of other parameters."""
    for group, own in zip(optimizer.param_groups, before, strict=True):
        if wrong := [key for key, value in own.items() if _numbers(value) and _numbers(group[key]) != _numbers(value)]:
            raise TypeError(f"the optimizer has {wrong[0]}={group[wrong[0]]!r}")
        if "lr_scale" in group and _numbers(group["lr_scale"]) != 1:  # which schedules of timm look for
            raise TypeError(f"the optimizer has lr_scale={group['lr_scale']!r}")
    if not all(isinstance(key, Tensor) and isinstance(value, dict) for key, value in optimizer.state.items()):
        raise TypeError("the optimizer has states of other parameters")


def _try_update(optimizer: Optimizer) -> None:
    """Make an update before weights and state are loaded for good: only an optimizer knows what its state must have."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()


def _numbers(value: object) -> int:
    """How many numbers an option holds; 0 if it is something else."""
    if isinstance(value, list | tuple):
        return sum(map(_numbers, value))
    return int(isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 2**53)


def _pack(value: object, prefix: str, tensors: State) -> object:
    """`value` as JSON can hold it; its tensors go into `tensors` under names that begin with `prefix`."""
    if isinstance(value, Tensor):
        tensors[prefix] = value
        return {TENSOR: prefix}
    if isinstance(value, dict):
        return {ITEMS: [[key, _pack(item, f"{prefix}/{key}", tensors)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        packed = [_pack(item, f"{prefix}/{i}", tensors) for i, item in enumerate(value)]
        return {TUPLE: packed} if isinstance(value, tuple) else packed
    if isinstance(value, float) and str(value) in SPECIAL:
        return {NUMBER: str(value)}
    return value


def _unpack(value: Any, tensors: State) -> object:
    """The inverse of `_pack`."""
    if isinstance(value, list):
        return [_unpack(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if TENSOR in value:
        return tensors[value[TENSOR]]
    if TUPLE in value:
        return tuple(_unpack(item, tensors) for item in value[TUPLE])
    if NUMBER in value:
        return float(value[NUMBER])
    return {key: _unpack(item, tensors) for key, item in value[ITEMS]}
