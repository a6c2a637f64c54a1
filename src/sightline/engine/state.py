"""Everything that a run resumes from: progress, weights, averaged weights, optimizer and loss scaler."""

from dataclasses import asdict, dataclass, field, fields
from typing import Any, cast

from timm.utils import ModelEmaV3
from torch import nn
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

from sightline.engine.checkpoint import Saved
from sightline.engine.tree import State, pack, unpack
from sightline.util.errors import FileError

GATHER = StateDictOptions(full_state_dict=True, cpu_offload=True)
SCATTER = StateDictOptions(full_state_dict=True)


@dataclass
class Progress:
    """How far a run has come.

    Args:
        epoch, batch: the next epoch and the next update in it; batch is the number of updates per epoch once only the
            evaluation is left.
        step: updates so far, skipped ones included.
        loss_sum, losses: of the updates of this epoch so far.
        skipped: updates skipped because of non-finite numbers.
        best, best_epoch: the best evaluation.
        broken: messages about examples that could not be read.
        seconds: of training and evaluation before the last start.
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
        """Mean over the updates of this epoch so far."""
        return self.loss_sum / self.losses if self.losses else None

    def next_epoch(self) -> None:
        self.epoch, self.batch, self.loss_sum, self.losses = self.epoch + 1, 0, 0.0, 0

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> "Progress":  # JSON
        return cls(**{item.name: record[item.name] for item in fields(cls)})


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
    record["optimizer"] = pack(state, "optimizer", tensors)
    record["scaler"] = None if scaler is None else pack(scaler.state_dict(), "scaler", tensors)
    return weights, tensors, record


def restore(
    saved: Saved, model: nn.Module, average: ModelEmaV3 | None, optimizer: Optimizer, scaler: GradScaler | None
) -> Progress:
    """Load a checkpoint into the model, its average, the optimizer and the scaler.

    Raises:
        FileError: it belongs to another model or optimizer.
    """
    try:
        own = {key.removeprefix("model/"): value for key, value in saved.tensors.items() if key.startswith("model/")}
        weights = dict(own if average is not None else saved.weights)
        state: Any = unpack(saved.record["optimizer"], saved.tensors)
        inner = getattr(optimizer, "optimizer", optimizer)
        if is_sharded(model):
            set_model_state_dict(model, cast(dict[str, Any], weights), options=SCATTER)
            set_optimizer_state_dict(model, inner, state, options=SCATTER)
        else:
            model.load_state_dict(weights)
            inner.load_state_dict(state)
        if average is not None:
            average.module.load_state_dict(saved.weights)
        if scaler is not None and saved.record["scaler"] is not None:
            scaler.load_state_dict(cast(dict[str, Any], unpack(saved.record["scaler"], saved.tensors)))
        return Progress.from_record(saved.record)
    except (KeyError, RuntimeError, TypeError) as error:
        raise FileError(f"{saved.path}: belongs to another run ({' '.join(str(error).split())[:200]})") from error
