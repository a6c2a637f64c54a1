"""Fit a state dict to a model: published layouts and our own, for a model of any size."""

import math
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from timm.models import adapt_input_conv
from torch import nn

from sightline.layers.core import Core
from sightline.layers.position import PositionTable, resample_grid
from sightline.layers.stripe_attention import StripeAttention
from sightline.layers.window_attention import RelativePositionBias, resample_bias
from sightline.models.weights.layouts import family_of, to_native
from sightline.models.weights.reader import State, some, unwrap
from sightline.models.weights.shapes import Target, shown_heads
from sightline.util.errors import FileError, WeightsWarning

# What belongs to an attention mechanism rather than to the model around it, and the block that it is in.
MECHANISM_KEY = re.compile(r"^(.*\bblocks\.\d+)\.attn\.(?:(?:branches\.\d+\.)?core|position_bias|sr|sr_norm)\.")
CORE_KEY = re.compile(r"^(.*\bblocks\.\d+)\.attn\.(?:branches\.\d+\.)?core$")


@dataclass(frozen=True)
class Mismatch:
    """What keeps a state dict from loading into a model; false if nothing does."""

    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    misshapen: tuple[str, ...] = ()

    def rows(self) -> list[tuple[str, tuple[str, ...]]]:
        """Each category with its keys, including empty ones."""
        return [
            ("missing", self.missing),
            ("unexpected", self.unexpected),
            ("of the wrong shape", self.misshapen),
        ]

    def __bool__(self) -> bool:
        return any(keys for _, keys in self.rows())


class MismatchError(FileError, RuntimeError):
    """Weights that do not fit the model. Also a RuntimeError, like torch's own.

    Args:
        what: does not fit.
        mismatch: every key.
        remedy: the end of the message.
        origins: names in the file of keys that were renamed.
    """

    def __init__(
        self, what: str, mismatch: Mismatch, remedy: str = "", origins: Mapping[str, str] | None = None
    ) -> None:
        lines = [f"{len(keys)} {which}: {some(keys)}" for which, keys in mismatch.rows() if keys]
        super().__init__(f"{what}: {'; '.join(lines)}{remedy}")
        self.mismatch, self.origins = mismatch, origins or {}


def prepare(
    given: Mapping[str, object], model: Target, strict: bool, pruned: Callable[[str], bool] | None = None
) -> State:
    """`given` as `model.load_state_dict` needs it: unwrapped, renamed, resampled and checked.

    `pruned` tells which keys of a whole model are left out of this one.

    Weights that differ in the attention mechanism alone fit if `strict`; see `fit_mechanism`.

    Raises:
        MismatchError: names what is missing, unexpected or of the wrong shape; unless `strict`, only shapes count.
        FileError: they belong to another family, or have another number of heads.
    """
    state = unwrap(dict(given))
    found = family_of(list(state))
    state = {key: value for key, value in adapt(state, model).items() if pruned is None or not pruned(key)}
    heads = shown_heads(state)
    state = fit_mechanism(state, model) if strict else state
    mismatch = compare(state, model)
    if mismatch.misshapen or (strict and mismatch):
        remedy = "; sightline.load(path) builds the model that weights belong to"
        raise MismatchError(f"the weights do not fit this {model.family} model", mismatch, remedy)
    _check_heads(heads, model, published=found is not None and not found[1])
    return state


def adapt(state: State, model: Target) -> State:
    """`state` under the names of `model`, with tables and first convolution fitted to its shapes."""
    found = family_of(list(state))
    if found is not None:
        family, native = found
        if family != model.family:
            raise FileError(
                f"these are weights of the {family} family, not of {model.family}; "
                f"see `sightline list '*{family}*'` for the models that read them"
            )
        if not native:
            state = to_native(state, family)
    return _fit(state, model)


def compare(state: State, model: Target | nn.Module) -> Mismatch:
    """What keeps `state`, in the model's own layout, from loading into `model`."""
    own = {k: tuple(v.shape) for k, v in model.state_dict().items()}
    return Mismatch(
        # Batch norm creates its counters itself.
        missing=tuple(k for k in own if k not in state and not k.endswith("num_batches_tracked")),
        unexpected=tuple(k for k in state if k not in own),
        misshapen=tuple(
            f"{k} is {tuple(state[k].shape)}, should be {shape}"
            for k, shape in own.items()
            if k in state and tuple(state[k].shape) != shape
        ),
    )


def fit_mechanism(state: State, model: Target | nn.Module) -> State:
    """`state` for a model that differs from its own in the attention mechanism alone.

    Tensors of the model's mechanism keep their initial values and those of the checkpoint's are left out; a warning
    names both. If anything else differs, or a block has only some tensors of its mechanism, the state is returned
    unchanged and does not fit. Those of `layers/adapt.py` may be missing alone, since they start as the identity.
    """
    given, state = state, _fit_branches(state, model)
    own, mismatch = model.state_dict(), compare(state, model)
    missing, unexpected = mismatch.missing, mismatch.unexpected
    if not mismatch:
        return state
    blocks = {key: match[1] for key in (*own, *state) if (match := MECHANISM_KEY.match(key))}
    if mismatch.misshapen or not blocks.keys() >= {*missing, *unexpected}:
        return given
    changed = {blocks[key] for key in missing if ".core.adapt." not in key}
    if any(blocks[key] in changed for key in own if key in blocks and key in state):
        return given
    parts = [f"{len(missing)} of its tensors keep their initial values ({some(missing)})"] if missing else []
    parts += [f"{len(unexpected)} of the checkpoint are left out ({some(unexpected)})"] if unexpected else []
    warnings.warn(
        f"the checkpoint has another attention mechanism than the model: {', and '.join(parts)}",
        WeightsWarning,
        stacklevel=4,
    )
    return {**{k: v for k, v in state.items() if k in own}, **{k: own[k] for k in missing}}


def heads_of(model: Target | nn.Module) -> dict[str, int]:
    """The number of heads of every block, by the name of the block."""
    found: dict[str, int] = {}
    for name, module in model.named_modules():
        if isinstance(module, Core) and (match := CORE_KEY.match(name)):
            found[match[1]] = found.get(match[1], 0) + module.num_heads  # the branches of a block share its heads
    return found


def _check_heads(shown: Mapping[str, int], model: Target, published: bool) -> None:
    """Reject weights of another number of heads, and warn if nothing shows the number.

    The shapes of qkv and proj are the same for any number of heads, so torch would load such weights silently. Our own
    layout is not warned about: a state dict usually goes back into the model it came from.
    """
    own = heads_of(model)
    for block, heads in shown.items():
        if heads != own.get(block, heads):
            raise FileError(
                f"{block} has {heads} heads in the weights and {own[block]} in the model; build the model with "
                f"the num_heads of the weights"
            )
    if published and own and not shown:
        counts = sorted(set(own.values()))
        warnings.warn(
            f"the weights do not show their number of heads; this {model.family} model uses "
            f"{', '.join(map(str, counts))}. If they were trained with another number, pass it as num_heads",
            WeightsWarning,
            stacklevel=4,
        )


def _fit_branches(state: State, model: Target | nn.Module) -> State:
    """CSwin has two branches in stripes and one on the whole map, whose convolutions of v agree by channel."""
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


def _fit(state: State, model: Target) -> State:
    """Resample what depends on the size of images or windows, and on the numbers of channels and classes."""
    state = dict(state)
    for name, module in model.named_modules():
        if isinstance(module, PositionTable) and _is_table(state, f"{name}.weight", 4):
            grid = (module.weight.shape[1], module.weight.shape[2])
            state[f"{name}.weight"] = resample_grid(state[f"{name}.weight"], grid, module.mode)
        if isinstance(module, RelativePositionBias) and _is_table(state, f"{name}.table", 2):
            table, side = state[f"{name}.table"], module.side()
            if table.shape[0] != side * side and math.isqrt(table.shape[0]) ** 2 == table.shape[0]:
                state[f"{name}.table"] = resample_bias(table, (side + 1) // 2)
    conv = f"{model.first_conv}.weight"
    if _is_table(state, conv, 4) and state[conv].shape[1] == 3 != model.in_chans:
        state[conv] = adapt_input_conv(model.in_chans, state[conv])
    _fit_head(state, model)
    return state


def _fit_head(state: State, model: Target) -> None:
    """Keep the model's own head, with a warning, if the weights have another number of classes."""
    classes = state["head.weight"].shape[0] if _is_table(state, "head.weight", 2) else model.num_classes
    if classes == model.num_classes:
        return
    if model.num_classes:
        warnings.warn(
            f"the checkpoint has {classes} classes and the model {model.num_classes}: "
            f"the classifier keeps its initial weights",
            WeightsWarning,
            stacklevel=2,
        )
    for key in [k for k in state if k.startswith("head.")]:
        del state[key]
    state.update({f"head.{k}": v for k, v in model.get_classifier().state_dict().items()})


def _is_table(state: State, key: str, ndim: int) -> bool:
    """Whether there is something to resample; anything else is left and reported as misshapen."""
    return key in state and state[key].ndim == ndim and state[key].numel() > 0
