"""Everything a run goes on from: where it is, weights, averaged weights, optimizer and loss scaler."""

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from sightline.engine.checkpoint import Saved
from sightline.engine.tree import State, pack, unpack

GATHER = StateDictOptions(full_state_dict=True, cpu_offload=True)
SCATTER = StateDictOptions(full_state_dict=True)


@dataclass
class Progress:
    """Where a run is.

    Args:
        epoch, batch: the epoch, and the update inside it, that come next; batch is the number of updates of an epoch
            once only the evaluation is left.
        step: updates so far, skipped ones included.
        loss_sum, losses: of the updates of this epoch so far.
        skipped: updates left out because of non-finite numbers.
        best, best_epoch: the best evaluation.
        broken: what was wrong with images that were skipped.
        seconds: of training and evaluation before this start.
    """

    epoch: int = 0
    batch: int = 0
    step: int = 0
    loss_sum: float = 0.0
    losses: int = 0
    skipped: int = 0
    best: float | None = None
    best_epoch: int | None = None
    broken: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def mean_loss(self) -> float | None:
        """Of the updates of this epoch so far."""
        return self.loss_sum / self.losses if self.losses else None

    def next_epoch(self) -> None:
        self.epoch, self.batch, self.loss_sum, self.losses = self.epoch + 1, 0, 0.0, 0

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> "Progress":
        return cls(**{item.name: record[item.name] for item in fields(cls)})


def is_sharded(model: nn.Module) -> bool:
    """Whether every process holds a part of each parameter only, as under FSDP.

    The parameters do not always show it: between a forward pass and what comes next they are whole.
    """
    return isinstance(model, FSDPModule) or any(isinstance(parameter, DTensor) for parameter in model.parameters())


def full_weights(model: nn.Module) -> State:
    """The whole weights; of a sharded model all processes must ask, and only the first is told."""
    if not is_sharded(model):
        return dict(model.state_dict())
    gathered: dict[str, Any] = get_model_state_dict(model, options=GATHER)
    return gathered


def capture(
    progress: Progress, model: nn.Module, average: Any, optimizer: Any, scaler: Any
) -> tuple[State, State, dict[str, Any]]:
    """The weights to use, and the tensors and the record to go on from.

    The averaged weights are the ones to use where there are any; the model's own then join the tensors. Of a sharded
    model all processes must ask, and only the first is told.
    """
    tensors: State = {}
    weights = full_weights(model)
    if average is not None:
        tensors = {f"model/{key}": value for key, value in weights.items()}
        weights = dict(average.module.state_dict())
    record = asdict(progress)
    inner = getattr(optimizer, "optimizer", optimizer)
    state = get_optimizer_state_dict(model, inner, options=GATHER) if is_sharded(model) else inner.state_dict()
    record["optimizer"] = pack(state, "optimizer", tensors)
    record["scaler"] = None if scaler is None else pack(scaler.state_dict(), "scaler", tensors)
    return weights, tensors, record


def restore(saved: Saved, model: nn.Module, average: Any, optimizer: Any, scaler: Any) -> Progress:
    """Put a checkpoint back into everything.

    Raises:
        ValueError: it belongs to another model or optimizer.
    """
    try:
        own = {key.removeprefix("model/"): value for key, value in saved.tensors.items() if key.startswith("model/")}
        weights: dict[str, Any] = dict(own if average is not None else saved.weights)
        state = unpack(saved.record["optimizer"], saved.tensors)
        inner = getattr(optimizer, "optimizer", optimizer)
        if is_sharded(model):
            set_model_state_dict(model, weights, options=SCATTER)
            set_optimizer_state_dict(model, inner, state, options=SCATTER)
        else:
            model.load_state_dict(weights)
            inner.load_state_dict(state)
        if average is not None:
            average.module.load_state_dict(saved.weights)
        if scaler is not None and saved.record["scaler"] is not None:
            scaler.load_state_dict(unpack(saved.record["scaler"], saved.tensors))
        return Progress.from_record(saved.record)
    except (KeyError, RuntimeError, TypeError) as error:
        raise ValueError(f"{saved.path}: of another run ({' '.join(str(error).split())[:200]})") from error
