"""The arguments of a model in timm's description of it, `model.pretrained_cfg`.

`timm.models.save_for_hf` writes that description, but before timm 1.0.31 of the arguments only the number of classes:
without the rest a model with `attention="softmax"` would come back as another one. Ours are a line of its free-text
entry `notes`, which timm's own record, where there is one, has to agree with.
"""

import inspect
import json
from collections.abc import Mapping
from typing import Any

from torch import nn

from sightline.models.weights.recorded import read_arguments
from sightline.util.errors import FileError
from sightline.util.files import jsonable

try:
    from timm.models import _input as timm_record  # since timm 1.0.31
except ImportError:
    timm_record = None

NOTE = "sightline arguments: "
# What timm records itself, what belongs to a call of create_model, and what only training needs.
UNRECORDED = {
    "num_classes", "features_only", "out_indices", "feature_cls", "drop_rate", "drop_path_rate", "pos_drop_rate",
    "proj_drop_rate", "pretrained_model_args",
}  # fmt: skip


def record_arguments(model: nn.Module, args: Mapping[str, object]) -> None:
    """Record the arguments of a model in its description, which `timm.models.save_for_hf` writes."""
    cfg: dict[str, Any] | None = getattr(model, "pretrained_cfg", None)
    if cfg is None:  # built by its class, not by timm
        return
    kept = {key: jsonable(value) for key, value in args.items() if key not in UNRECORDED}
    notes = [note for note in cfg.get("notes") or () if not str(note).startswith(NOTE)]
    notes += [NOTE + json.dumps(kept, default=str)] if kept else []
    cfg.pop("notes", None)
    if notes:
        cfg["notes"] = tuple(notes)


def update_arguments(model: nn.Module, **changed: object) -> None:
    """Record arguments that a method has changed since the model was built."""
    notes = getattr(model, "pretrained_cfg", {}).get("notes")
    record_arguments(model, {**recorded_arguments(notes, type(model)), **changed})
    if timm_record is not None:
        update = timm_record.update_model_input_size if "img_size" in changed else timm_record.update_model_args
        update(model, **changed)


def recorded_arguments(notes: object, cls: type[nn.Module]) -> dict[str, Any]:
    """The arguments in a description from a file; {} if it has none.

    Raises:
        FileError: they are damaged, or are no arguments of `cls`.
    """
    listed = notes if isinstance(notes, list | tuple) else ()
    given = [note for note in listed if isinstance(note, str) and note.startswith(NOTE)]
    if not given:
        return {}
    args = read_arguments({"model_args": given[-1].removeprefix(NOTE)})
    known = {name for base in cls.__mro__ for name in inspect.signature(base).parameters} - UNRECORDED
    known -= {"args", "kwargs"}
    for key in args:
        if key not in known:
            raise FileError(f"its description has an argument {key!r}, which {cls.__name__} does not take")
    return {key: _tuples(value) for key, value in args.items()}


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
