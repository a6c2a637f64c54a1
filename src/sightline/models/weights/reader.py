"""Read weight files as data; nothing in them is ever executed.

Pickles are read with `weights_only=True`, sizes are checked before memory is allocated, and every error is a
`FileError` of one line.
"""

import argparse
import mmap
import os
import re
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor

from sightline.models.weights.archive import check_archive
from sightline.util.errors import FileError
from sightline.util.files import reason

State = dict[str, Tensor]

# Where training programs keep the weights, best first: averaged weights are the ones that are evaluated.
STATE_KEYS = ("state_dict_ema", "model_ema", "model", "state_dict")
PREFIXES = ("module.", "_orig_mod.", "model.")
AVERAGE_COUNT = "n_averaged"  # a counter in the state of torch's AveragedModel
BYTEARRAY = re.compile(rb"(?:builtins|__builtin__)\nbytearray\n")  # in a pickle
UNSAFE = re.compile(r"\bGLOBAL (\S+)")  # a function or class, in torch's message, that is no part of a tensor
SHOWN = 4  # names in a message before the count
EXPORTED = (".onnx", ".pt2")  # files that `sightline.export` writes
# The weights of a run folder, best first; a folder may also be one of these.
WEIGHTS = "model.safetensors"
RUN_FOLDERS = (".", "checkpoints/best", "checkpoints/last", "checkpoints/previous")


@dataclass(frozen=True)
class Weights:
    """The content of a weight file.

    Args:
        path: the file.
        state: tensors by name, without wrappers and prefixes.
        metadata: what a safetensors file records about itself.
        architecture: the name under which a training program saved the model; "" if unknown.
    """

    path: Path
    state: State
    metadata: dict[str, str] = field(default_factory=dict)
    architecture: str = ""


def read_weights(path: str | Path) -> Weights:
    """Read a `.safetensors` file or a pickled checkpoint, header and tensors in one pass; of a run folder the best one.

    Raises:
        FileError: the file is missing, empty, truncated, not a checkpoint, or would execute code.
    """
    path = Path(path)
    if path.is_dir():
        found = (path / inner / WEIGHTS for inner in RUN_FOLDERS)
        path = next((file for file in found if file.is_file()), path)
    if not path.is_file():
        what = "no weights in it" if path.is_dir() else "no such file"
        raise FileError(f"{path}: {what}; give a file, or a run folder with checkpoints/best/{WEIGHTS}")
    if not os.access(path, os.R_OK):
        raise FileError(f"{path}: permission denied; check the permissions of the file")
    if path.suffix.lower() in EXPORTED:
        raise FileError(f"{path}: an exported model; give the weights that it was made from")
    metadata: dict[str, str] = {}
    loaded: object
    if path.suffix == ".safetensors":
        loaded, metadata = _read_safetensors(path)
    else:
        loaded = _read_pickle(path)
    state = unwrap(loaded)
    if not state:
        raise FileError(f"{path}: no weights in it; expected a state dict, or one under {', '.join(STATE_KEYS)}")
    _check_sizes(path, state)
    return Weights(path, state, metadata, _architecture(loaded))


def _check_sizes(path: Path, state: State) -> None:
    """Reject tensors without data, and shapes that claim more bytes than the file has."""
    stored: dict[int, int] = {}
    for key, value in state.items():
        if value.layout is not torch.strided or value.device.type != "cpu" or value.is_quantized:
            raise FileError(f"{path}: {key} is not a plain tensor with data; save the weights as dense CPU tensors")
        held = value.untyped_storage().nbytes()
        if value.numel() * value.element_size() > held:
            raise FileError(
                f"{path}: {key} claims shape {tuple(value.shape)} but holds {held} bytes; the file is damaged or forged"
            )
        stored[value.untyped_storage().data_ptr()] = held
    if sum(stored.values()) > path.stat().st_size:
        raise FileError(
            f"{path}: {path.stat().st_size} bytes claim to hold {sum(stored.values())} bytes of weights; "
            f"the file is damaged or forged"
        )


def _read_safetensors(path: Path) -> tuple[State, dict[str, str]]:
    try:
        with safetensors.safe_open(path, "pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise FileError(f"{path}: not a readable safetensors file ({reason(error)}); save it again") from error


def _read_pickle(path: Path) -> object:
    if not path.stat().st_size:
        raise FileError(f"{path}: empty; download it again")
    packed = zipfile.is_zipfile(path)
    if packed:
        check_archive(path)
    _check_bytes(path)
    try:
        # Training programs keep their options in a Namespace, which only holds attributes (timm), or in a dictionary
        # of yacs (Swin and what is built on it), for which a plain one is read.
        options: list[Any] = [argparse.Namespace, (OrderedDict, "yacs.config.CfgNode")]
        with torch.serialization.safe_globals(options), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # A mapped storage is a slice of the file: it cannot claim bytes that the file does not have.
            return torch.load(str(path), map_location="cpu", weights_only=True, mmap=packed)
    except Exception as error:  # torch raises many types on damaged files; all mean the same to the user
        if unsafe := UNSAFE.search(str(error)):
            raise FileError(
                f"{path}: rejected, it holds objects that could run code when read ({unsafe[1]}); "
                f"ask its author for plain tensors or safetensors"
            ) from error
        why = f" ({reason(error)})" if isinstance(error, RuntimeError) else ""
        raise FileError(f"{path}: damaged, or not a checkpoint of torch.save{why}; download it again") from error


def _check_bytes(path: Path) -> None:
    """Reject the one call that torch lets a pickle make with a number: `bytearray(10**10)` takes that much memory."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if BYTEARRAY.search(data):
            raise FileError(f"{path}: rejected, it holds a bytearray; ask its author for plain tensors or safetensors")


def unwrap(loaded: object) -> State:
    """The tensors of a state dict, from whatever dictionaries and prefixes surround them."""
    if not isinstance(loaded, dict):
        return {}
    inner = (loaded.get(key) for key in STATE_KEYS)
    found: dict[object, object] = next((value for value in inner if isinstance(value, dict) and value), loaded)
    state = {k: v for k, v in found.items() if isinstance(k, str) and isinstance(v, Tensor) and k != AVERAGE_COUNT}
    while state and (prefix := next((p for p in PREFIXES if all(k.startswith(p) for k in state)), None)):
        state = {k.removeprefix(prefix): v for k, v in state.items()}
    return state


def _architecture(loaded: object) -> str:
    """The model's name in a training checkpoint: `arch` of timm, or `model` of the options it was trained with."""
    if not isinstance(loaded, dict):
        return ""
    options = loaded.get("args")
    names: Iterable[object] = (loaded.get("arch"), getattr(options, "model", None), getattr(options, "arch", None))
    return next((name for name in names if isinstance(name, str)), "")


def some(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    rest = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + rest
