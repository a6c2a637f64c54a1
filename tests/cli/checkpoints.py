"""Small models, their weights in the published layouts, and files that no reader should trust."""

import io
import os
import pickle
import re
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sightline.models.zoo import create

State = dict[str, Tensor]
PYRAMID = {"embed_dims": (8, 16, 24, 32), "num_heads": (1, 2, 3, 4), "depths": (1, 1, 1, 1)}
SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "deit": ("inline_deit_tiny", {"embed_dims": 16, "num_heads": 2, "depths": 2}),
    "pvt": ("inline_pvt_tiny", PYRAMID),
    "swin": (
        "inline_swin_tiny",
        {"embed_dims": 8, "num_heads": (1, 2, 2, 4), "depths": (1, 1, 1, 2), "window_size": 4},
    ),
    "cswin": ("inline_cswin_tiny", {"embed_dims": 8, "num_heads": (2, 2, 4, 4), "depths": (1, 1, 1, 1)}),
    "soft": ("soft_tiny", PYRAMID),
}
# From sightline's names to the published ones: the inverse of sightline.models.weights.layouts, written apart from it.
RESIDUAL = [(r"\.core\.residual\.fc1\.", ".residual.0."), (r"\.core\.residual\.fc2\.", ".residual.2.")]
TO_PUBLIC: dict[str, list[Any]] = {
    "deit": RESIDUAL,
    "pvt": [
        (r"^stages\.(\d)\.embed\.", lambda m: f"patch_embed{int(m[1]) + 1}."),
        (r"^stages\.(\d)\.pos_embed\.", lambda m: f"pos_embed{int(m[1]) + 1}."),
        (r"^stages\.(\d)\.blocks\.", lambda m: f"block{int(m[1]) + 1}."),
        (r"\.sr_norm\.", ".norm."),
        *RESIDUAL,
    ],
    "swin": [
        (r"^stages\.0\.embed\.", "patch_embed."),
        (r"^stages\.(\d)\.embed\.", lambda m: f"layers.{int(m[1]) - 1}.downsample."),
        (r"^stages\.", "layers."),
        (r"\.position_bias\.table$", ".relative_position_bias_table"),
        *RESIDUAL,
    ],
}


def small(family: str, **kwargs: Any) -> nn.Module:
    """A model of a few thousand parameters, in evaluation mode."""
    name, given = SMALL[family]
    return create(name, **{"img_size": 64, "num_classes": 10, **given, **kwargs}).eval()


def public(model: nn.Module) -> State:
    """The weights of a deit, pvt or swin under their published names and in their published shapes."""
    family, state = str(model.family), {}
    for key, value in model.state_dict().items():
        for pattern, replacement in TO_PUBLIC[family]:
            key = re.sub(pattern, replacement, key)
        state[key] = value
    for key in [key for key in state if re.fullmatch(r"pos_embed\d?\.weight", key)]:
        name = key.removesuffix(".weight")
        rows = state.pop(key).flatten(1, 2)
        prefix = state.pop(f"{name}.prefix", rows[:, :0])
        state[name] = torch.cat([prefix, rows], 1)
    for key in [key for key in state if family == "pvt" and ".attn.qkv." in key]:
        value = state.pop(key)
        third = value.shape[0] // 3
        state[key.replace(".qkv.", ".q.")], state[key.replace(".qkv.", ".kv.")] = value[:third], value[third:]
    for key in [key for key in state if key.endswith("relative_position_bias_table")]:
        state[key.replace("bias_table", "index")] = torch.zeros(16, 16, dtype=torch.int64)
    return state


def save(state: Any, path: Path, **kwargs: Any) -> str:
    torch.save(state, path, **kwargs)
    return str(path)


class Payload:
    """A pickle of this makes the folder `marker` when it is run."""

    def __init__(self, marker: Path) -> None:
        self.marker = str(marker)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.marker,)


class _Storage:
    pass


def forge(path: Path, shape: tuple[int, ...], stride: tuple[int, ...], claimed: int) -> str:
    """A checkpoint whose `head.weight` claims a shape over four numbers said to be `claimed` many."""
    storage = _Storage()

    class Claim:
        def __reduce__(self) -> tuple[Any, ...]:
            arguments = (storage, 0, shape, stride, False, OrderedDict())
            return torch._utils._rebuild_tensor_v2, arguments

    class Pickler(pickle.Pickler):
        def persistent_id(self, value: Any) -> Any:
            known = ("storage", torch.FloatStorage, "0", "cpu", claimed)
            return known if isinstance(value, _Storage) else None

    buffer = io.BytesIO()
    Pickler(buffer, 2).dump({"model": {"head.weight": Claim()}})
    plain = path.with_suffix(".plain")
    torch.save({"model": {"head.weight": torch.zeros(4)}}, plain)
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(path, "w") as out:
        for name in source.namelist():
            out.writestr(name, buffer.getvalue() if name.endswith("data.pkl") else source.read(name))
    return str(path)


def bomb(path: Path) -> str:
    """A small file whose one tensor unpacks to 256 MiB."""
    plain = path.with_suffix(".plain")
    torch.save({"model": {"head.weight": torch.zeros(4)}}, plain)
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for name in source.namelist():
            if not name.endswith("data/0"):
                out.writestr(name, source.read(name))
                continue
            with out.open(name, "w") as entry:
                for _ in range(256):
                    entry.write(bytes(1 << 20))
    return str(path)
