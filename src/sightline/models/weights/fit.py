"""Checkpoints into models: public ones as published and sightline's own, into a model of any size."""

import math
import re
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from timm.models import adapt_input_conv
from torch import nn

from sightline.layers.position import PositionTable, resample_grid
from sightline.layers.stripe_attention import StripeAttention
from sightline.layers.window_attention import RelativePositionBias, resample_bias
from sightline.models.weights.layouts import family_of, to_native
from sightline.models.weights.reader import CheckpointError, State, read_metadata, read_state, some, unwrap

if TYPE_CHECKING:
    from sightline.models.base import VisionModel

__all__ = [
    "CheckpointError",
    "Mismatch",
    "MismatchError",
    "adapt",
    "check_fit",
    "compare",
    "fit_mechanism",
    "read_metadata",
    "read_state",
    "unwrap",
]

# What belongs to an attention mechanism rather than to the model around it, and the block that it is in.
MECHANISM_KEY = re.compile(r"^(.*\bblocks\.\d+)\.attn\.(?:(?:branches\.\d+\.)?core|position_bias|sr|sr_norm)\.")


@dataclass(frozen=True)
class Mismatch:
    """What keeps a state dict from loading into a model; false where nothing does."""

    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    misshapen: tuple[str, ...] = ()

    def rows(self) -> list[tuple[str, tuple[str, ...]]]:
        """Each kind with its keys, empty ones too."""
        return [
            ("missing", self.missing),
            ("unexpected", self.unexpected),
            ("of the wrong shape", self.misshapen),
        ]

    def lines(self) -> list[str]:
        """A line for each kind that has keys, naming the first few."""
        return [f"{len(keys)} {what}: {some(keys)}" for what, keys in self.rows() if keys]

    def __bool__(self) -> bool:
        return any(keys for _, keys in self.rows())


class MismatchError(CheckpointError, RuntimeError):
    """A checkpoint that does not fit the model; `mismatch` names every key. A RuntimeError too, as torch's own is."""

    def __init__(self, what: str, mismatch: Mismatch, remedy: str = "") -> None:
        super().__init__(f"{what}: {'; '.join(mismatch.lines())}{remedy}")
        self.what = what
        self.mismatch = mismatch


def adapt(state: State, model: "VisionModel") -> State:
    """`state` under the names of `model`, with tables and first convolution fitted to its shapes."""
    found = family_of(list(state))
    if found is not None:
        family, native = found
        if family != model.family:
            raise CheckpointError(
                f"these are weights of the {family} family, not of {model.family}; "
                f"see `sightline list '*{family}*'` for the models that read them"
            )
        if not native:
            state = to_native(state, family)
    return _fit(state, model)


def adapt_hook(model: Any, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Before `load_state_dict`, also of a module around the model: bring the entries under `prefix` into its form."""
    own = {k.removeprefix(prefix): state.pop(k) for k in list(state) if k.startswith(prefix)}
    state.update({f"{prefix}{k}": v for k, v in adapt(unwrap(own), model).items()})


def check_fit(state: State, model: Any, strict: bool) -> None:
    """Refuse a state in the model's own layout that does not fit it; unless `strict`, only wrong shapes count.

    Raises:
        MismatchError: names what is missing, unexpected or of the wrong shape.
    """
    mismatch = compare(state, model)
    if mismatch.misshapen or (strict and mismatch):
        raise MismatchError(f"the weights do not fit this {model.family} model", mismatch)


def fit_mechanism(state: State, model: Any) -> State:
    """`state` for a model that differs from its own in the attention mechanism alone: the rest is taken as it is.

    What belongs to the model's mechanism keeps its initial values, and what belongs to that of the checkpoint is left
    out; a warning names both. Where anything else differs, or a block has a part of its mechanism only, the state is
    given back as it was, to be refused.
    """
    given, state = state, _fit_branches(state, model)
    own, mismatch = model.state_dict(), compare(state, model)
    missing, unexpected = mismatch.missing, mismatch.unexpected
    if not mismatch:
        return state
    if mismatch.misshapen or not all(MECHANISM_KEY.match(key) for key in (*missing, *unexpected)):
        return given
    changed = {_block_of(key) for key in missing}
    if any(_block_of(key) in changed and key in state for key in own if MECHANISM_KEY.match(key)):
        return given
    parts = [f"{len(missing)} of its tensors keep their initial values ({some(missing)})"] if missing else []
    parts += [f"{len(unexpected)} of the checkpoint are left out ({some(unexpected)})"] if unexpected else []
    warnings.warn(
        f"the checkpoint has another attention mechanism than the model: {', and '.join(parts)}", stacklevel=3
    )
    return {**{k: v for k, v in state.items() if k in own}, **{k: own[k] for k in missing}}


def _fit_branches(state: State, model: nn.Module) -> State:
    """CSwin has two branches in stripes and one on the whole map: their convolutions of v, by channel, are the same."""
    state = dict(state)
    for name, module in model.named_modules():
        if not isinstance(module, StripeAttention):
            continue
        for what in ("weight", "bias"):
            first, second = (f"{name}.branches.{i}.lepe.{what}" for i in range(2))
            if len(module.branches) == 1 and first in state and second in state:
                state[first] = torch.cat([state[first], state.pop(second)])
            elif len(module.branches) == 2 and first in state and second not in state:
                state[first], state[second] = state[first].chunk(2)
    return state


def _block_of(key: str) -> str:
    match = MECHANISM_KEY.match(key)
    assert match is not None
    return match[1]


def _fit(state: State, model: "VisionModel") -> State:
    """Resample what depends on the size of images or windows, the number of channels or of classes."""
    state = dict(state)
    for name, module in model.named_modules():
        if isinstance(module, PositionTable) and _is_table(state, f"{name}.weight", 4):
            grid = (module.weight.shape[1], module.weight.shape[2])
            state[f"{name}.weight"] = resample_grid(state[f"{name}.weight"], grid, module.mode)
        if isinstance(module, RelativePositionBias) and _is_table(state, f"{name}.table", 2):
            table, side = state[f"{name}.table"], module.side
            if table.shape[0] != side * side and math.isqrt(table.shape[0]) ** 2 == table.shape[0]:
                state[f"{name}.table"] = resample_bias(table, (side + 1) // 2)
    conv = f"{model.first_conv}.weight"
    if _is_table(state, conv, 4) and state[conv].shape[1] == 3 != model.in_chans:
        state[conv] = adapt_input_conv(model.in_chans, state[conv])
    _fit_head(state, model)
    return state


def _fit_head(state: State, model: "VisionModel") -> None:
    """Weights for another number of classes leave the model's own head as it is, and say so."""
    classes = state["head.weight"].shape[0] if _is_table(state, "head.weight", 2) else model.num_classes
    if classes == model.num_classes:
        return
    if model.num_classes:
        warnings.warn(
            f"the checkpoint has {classes} classes and the model {model.num_classes}: "
            f"the classifier keeps its initial weights",
            stacklevel=2,
        )
    for key in [k for k in state if k.startswith("head.")]:
        del state[key]
    state.update({f"head.{k}": v for k, v in model.get_classifier().state_dict().items()})


def _is_table(state: State, key: str, ndim: int) -> bool:
    """Whether there is something to resample; what has another form is left, to be named as misshapen."""
    return key in state and state[key].ndim == ndim and state[key].numel() > 0


def compare(state: State, model: nn.Module) -> Mismatch:
    """What keeps `state`, in the model's own layout, from loading into `model`."""
    own = {k: tuple(v.shape) for k, v in model.state_dict().items()}
    return Mismatch(
        # Batch norm makes its counters itself.
        missing=tuple(k for k in own if k not in state and not k.endswith("num_batches_tracked")),
        unexpected=tuple(k for k in state if k not in own),
        misshapen=tuple(
            f"{k} is {tuple(state[k].shape)}, should be {shape}"
            for k, shape in own.items()
            if k in state and tuple(state[k].shape) != shape
        ),
    )
