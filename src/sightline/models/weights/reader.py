"""Reading files of weights: what is in them is data and is never run.

Pickles are read with `weights_only=True`, sizes are checked before anything is allocated, and every refusal
is a `CheckpointError` of one line.
"""

import argparse
import io
import os
import pickle
import pickletools
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

State = dict[str, Tensor]

# Where a training program keeps the weights, best first: averaged weights are the ones that are evaluated.
STATE_KEYS = ("state_dict_ema", "model_ema", "model", "state_dict")
PREFIXES = ("module.", "_orig_mod.", "model.")
AVERAGE_COUNT = "n_averaged"  # beside the weights in the state of torch's AveragedModel
# What torch's own pickles of tensors name; anything else is not data.
TENSOR_GLOBALS = ("torch.", "collections.OrderedDict", "argparse.Namespace")
SCANNED = 1 << 24  # bytes of a pickle that are searched for what it would run
SHOWN = 4  # names in a message before the count


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
    if not os.access(path, os.R_OK):
        raise CheckpointError(f"{path}: this file may not be read; look at its permissions")
    if path.stat().st_size == 0:
        raise CheckpointError(f"{path}: the file is empty; download or save it again")
    loaded = _read_safetensors(path) if path.suffix == ".safetensors" else _read_pickle(path)
    state = unwrap(loaded)
    if not state:
        raise CheckpointError(f"{path}: no weights in it; expected a state dict, or one under {', '.join(STATE_KEYS)}")
    _check_sizes(path, state)
    return state


def read_metadata(path: str | Path) -> dict[str, str]:
    """What a `.safetensors` file says about itself; empty for other files and unreadable ones."""
    if Path(path).suffix != ".safetensors":
        return {}
    try:
        with safetensors.safe_open(path, "pt") as file:
            return file.metadata() or {}
    except (safetensors.SafetensorError, OSError):
        return {}


def _check_sizes(path: Path, state: State) -> None:
    """Refuse tensors without data, and shapes that claim more bytes than are there."""
    stored: dict[int, int] = {}
    for key, value in state.items():
        if value.layout is not torch.strided or value.device.type != "cpu" or value.is_quantized:
            raise CheckpointError(f"{path}: {key} is not a plain tensor with data; save the weights as such")
        held = value.untyped_storage().nbytes()
        if value.numel() * value.element_size() > held:
            raise CheckpointError(
                f"{path}: {key} claims shape {tuple(value.shape)} but holds {held} bytes; the file is damaged or forged"
            )
        stored[value.untyped_storage().data_ptr()] = held
    if sum(stored.values()) > path.stat().st_size:
        raise CheckpointError(
            f"{path}: {path.stat().st_size} bytes claim to hold {sum(stored.values())} bytes of weights; "
            f"the file is damaged or forged"
        )


def _read_safetensors(path: Path) -> Any:
    try:
        return safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path}: not a readable safetensors file ({_line(error)}); save it again") from error


def _read_pickle(path: Path) -> Any:
    packed = zipfile.is_zipfile(path)
    if packed:
        _check_archive(path)
    try:
        # timm's training checkpoints carry their options in a Namespace, which only holds attributes.
        with torch.serialization.safe_globals([argparse.Namespace]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Mapped, a storage is a slice of the file: it cannot claim bytes that the file does not have.
            return torch.load(str(path), map_location="cpu", weights_only=True, mmap=packed)
    except Exception as error:  # torch raises many kinds on damaged files; all mean the same to the user
        found = _unsafe(path) if isinstance(error, pickle.UnpicklingError) else []
        if found:
            raise CheckpointError(
                f"{path}: refused, it holds objects that could run code when read ({some(found)}); "
                f"ask its author for plain tensors or safetensors"
            ) from error
        why = f" ({_line(error)})" if isinstance(error, RuntimeError) else ""
        raise CheckpointError(f"{path}: damaged or not a checkpoint{why}; download it again") from error


def _check_archive(path: Path) -> None:
    """Refuse an archive that unpacks to more than it is: torch stores its tensors as they are."""
    size = path.stat().st_size
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        raise CheckpointError(f"{path}: damaged archive ({_line(error)}); download it again") from error
    claimed = sum(entry.file_size for entry in entries)
    if claimed > size:
        raise CheckpointError(f"{path}: {size} bytes claim to unpack to {claimed}; refused as a zip bomb")
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise CheckpointError(f"{path}: a compressed archive, which torch does not write; unpack and save it again")


def _unsafe(path: Path) -> list[str]:
    """The functions and classes that a pickle names besides those of tensors, found without running it."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            name = next((n for n in archive.namelist() if n.endswith("data.pkl")), None)
            data = archive.read(name) if name else b""
    else:
        with path.open("rb") as file:
            data = file.read(SCANNED)
    found, strings, stream = set(), ["", ""], io.BytesIO(data)
    try:
        while stream.tell() < len(data):  # an old checkpoint is several pickles in a row
            for opcode, value, _ in pickletools.genops(stream):
                if "GLOBAL" in opcode.name:
                    found.add(".".join(strings if value is None else str(value).split(" ")))
                elif isinstance(value, str):
                    strings = [strings[1], value]
    except Exception:  # what follows is no pickle: tensors, or damage
        pass
    return sorted(n for n in found if not n.startswith(TENSOR_GLOBALS))


def _line(error: BaseException) -> str:
    """The first sentence of an error."""
    text = str(error).strip().splitlines()
    return text[0].split(". ")[0][:160] if text else type(error).__name__


def unwrap(loaded: Any) -> State:
    """The tensors of a state dict, from whatever dictionaries and prefixes surround them."""
    if not isinstance(loaded, dict):
        return {}
    for key in STATE_KEYS:
        if isinstance(loaded.get(key), dict) and loaded[key]:
            loaded = loaded[key]
            break
    state = {str(k): v for k, v in loaded.items() if isinstance(v, Tensor) and k != AVERAGE_COUNT}
    while state and (prefix := next((p for p in PREFIXES if all(k.startswith(p) for k in state)), None)):
        state = {k.removeprefix(prefix): v for k, v in state.items()}
    return state


def some(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    rest = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + rest
