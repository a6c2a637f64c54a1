"""Reading checkpoints: public ones as published and sightline's own, safely, into a model of any size.

A file is data. Pickles are read with `weights_only=True`, sizes are checked before anything is allocated, and every
refusal is a `CheckpointError` of one line.
"""

import math
import pickle
import warnings
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors
import safetensors.torch
import torch
from timm.models import adapt_input_conv
from torch import Tensor, nn

from sightline.layers.position import PositionTable, resample_grid
from sightline.layers.window_attention import RelativePositionBias, resample_bias
from sightline.models.public import State, family_of, to_native

if TYPE_CHECKING:
    from sightline.models.base import VisionModel

# Where a training program keeps the weights, best first: averaged weights are the ones that are evaluated.
STATE_KEYS = ("state_dict_ema", "model_ema", "model", "state_dict")
PREFIXES = ("module.", "_orig_mod.", "model.")
EXPANSION = 64  # a file that claims to unpack to more than this many times its size is refused
SHOWN = 4  # keys named in a message before the count


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the message is one line that says why."""


def read_state(path: str | Path) -> State:
    """The state dict in a `.safetensors` file or a pickled checkpoint, without wrappers and prefixes.

    Raises:
        CheckpointError: the file is missing, empty, truncated, not a checkpoint, or would run code.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file; give the path of a checkpoint")
    if path.stat().st_size == 0:
        raise CheckpointError(f"{path}: the file is empty; download or save it again")
    loaded = _read_safetensors(path) if path.suffix == ".safetensors" else _read_pickle(path)
    state = unwrap(loaded)
    if not state:
        raise CheckpointError(f"{path}: no weights in it; expected a state dict, or one under {', '.join(STATE_KEYS)}")
    for key, value in state.items():
        stored = value.untyped_storage().nbytes()
        if value.numel() * value.element_size() > max(stored, 1):
            raise CheckpointError(f"{path}: {key} claims shape {tuple(value.shape)} but holds {stored} bytes; "
                                  f"the file is damaged or forged")
    return state


def _read_safetensors(path: Path) -> Any:
    try:
        return safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path}: not a readable safetensors file ({_line(error)}); save it again") from error


def _read_pickle(path: Path) -> Any:
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            claimed = sum(entry.file_size for entry in archive.infolist())
        if claimed > EXPANSION * path.stat().st_size:
            raise CheckpointError(f"{path}: {path.stat().st_size} bytes claim to unpack to {claimed}; refused")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if "Unsupported" in str(error) or "GLOBAL" in str(error) or "weights_only" in str(error).lower():
            raise CheckpointError(f"{path}: refused, it holds objects that would run code when read "
                                  f"({_unsafe(path)}); ask its author for plain tensors or safetensors") from error
        raise CheckpointError(f"{path}: not a readable checkpoint ({_line(error)})") from error
    except Exception as error:  # torch raises many kinds on damaged files; all mean the same to the user
        raise CheckpointError(f"{path}: damaged or not a checkpoint ({_line(error)}); download it again") from error


def _unsafe(path: Path) -> str:
    try:
        found = torch.serialization.get_unsafe_globals_in_checkpoint(str(path))
    except Exception:
        found = []
    return ", ".join(found[:SHOWN]) or "unknown objects"


def _line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return text[0][:160] if text else type(error).__name__


def unwrap(loaded: Any) -> State:
    """The tensors of a state dict, from whatever dictionaries and prefixes surround them."""
    if not isinstance(loaded, dict):
        return {}
    for key in STATE_KEYS:
        if isinstance(loaded.get(key), dict):
            loaded = loaded[key]
            break
    state = {str(k): v for k, v in loaded.items() if isinstance(v, Tensor)}
    for prefix in PREFIXES:
        if state and all(k.startswith(prefix) for k in state):
            state = {k.removeprefix(prefix): v for k, v in state.items()}
    return state


def adapt(state: State, model: "VisionModel") -> State:
    """`state` under the names of `model`, with tables and first convolution fitted to its shapes."""
    found = family_of(list(state))
    if found is not None:
        family, native = found
        if family != model.family:
            raise CheckpointError(f"these are weights of the {family} family, not of {model.family}; "
                                  f"see `sightline list '*{family}*'` for the models that read them")
        if not native:
            state = to_native(state, family)
    return _fit(state, model)


def adapt_hook(model: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Before `load_state_dict`: bring the entries under `prefix` into the model's own form, in place."""
    own = {k.removeprefix(prefix): state.pop(k) for k in list(state) if k.startswith(prefix)}
    state.update({f"{prefix}{k}": v for k, v in adapt(own, model).items()})  # type: ignore[arg-type]


def _fit(state: State, model: "VisionModel") -> State:
    """Resample what depends on the size of images or windows, the number of channels or of classes."""
    state = dict(state)
    for name, module in model.named_modules():
        if isinstance(module, PositionTable) and _ndim(state, f"{name}.weight") == 4:
            grid = (module.weight.shape[1], module.weight.shape[2])
            state[f"{name}.weight"] = resample_grid(state[f"{name}.weight"], grid, module.mode)
        if isinstance(module, RelativePositionBias) and _ndim(state, f"{name}.table") == 2:
            table, side = state[f"{name}.table"], module.side
            if table.shape[0] != side * side and math.isqrt(table.shape[0]) ** 2 == table.shape[0]:
                state[f"{name}.table"] = resample_bias(table, (side + 1) // 2)
    conv = f"{model.first_conv}.weight"
    if _ndim(state, conv) == 4 and state[conv].shape[1] != model.in_chans:
        state[conv] = adapt_input_conv(model.in_chans, state[conv])
    _fit_head(state, model)
    return state


def _fit_head(state: State, model: "VisionModel") -> None:
    """Weights for another number of classes leave the model's own head as it is, and say so."""
    classes = state["head.weight"].shape[0] if _ndim(state, "head.weight") == 2 else model.num_classes
    if classes == model.num_classes:
        return
    if model.num_classes:
        warnings.warn(f"the checkpoint has {classes} classes and the model {model.num_classes}: "
                      f"the classifier keeps its initial weights", stacklevel=2)
    for key in [k for k in state if k.startswith("head.")]:
        del state[key]
    state.update({f"head.{k}": v for k, v in model.get_classifier().state_dict().items()})


def _ndim(state: State, key: str) -> int:
    return state[key].ndim if key in state else -1


def differences(state: State, model: nn.Module) -> list[str]:
    """What keeps `state` from loading into `model`: missing, unexpected and misshapen keys, a line each."""
    own = {k: tuple(v.shape) for k, v in model.state_dict().items()}
    counters = {k for k in own if k.endswith("num_batches_tracked")}
    missing = [k for k in own if k not in state and k not in counters]
    unexpected = [k for k in state if k not in own]
    shapes = [f"{k} is {tuple(state[k].shape)}, should be {own[k]}" for k in own
              if k in state and tuple(state[k].shape) != own[k]]  # fmt: skip
    rows = (("missing", missing), ("unexpected", unexpected), ("of the wrong shape", shapes))
    return [f"{len(keys)} {what}: {_some(keys)}" for what, keys in rows if keys]


def _some(keys: list[str]) -> str:
    rest = f" and {len(keys) - SHOWN} more" if len(keys) > SHOWN else ""
    return ", ".join(keys[:SHOWN]) + rest
