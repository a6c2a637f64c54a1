"""Weights that follow from their names alone, as the golden files were made with.

A golden file (tests/golden/*.npz) is a public model's state dict as `[key, shape, kind]` rows and its logits
on a fixed random image. The numbers under a key come from a generator seeded with the key's checksum and are
scaled by what the key is: variances and norm gains near one, matrices by their fan-in, the rest small. Index,
mask and counter buffers of a published file say nothing that the architecture does not, so zeros stand for
them.
"""

import json
import zlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

GOLDEN = Path(__file__).parents[1] / "golden"


@dataclass(frozen=True)
class Golden:
    """A golden file: the public state dict, the images and the logits that the public model gave for them."""

    name: str
    state: dict[str, Tensor]
    images: Tensor
    logits: Tensor

    @classmethod
    def read(cls, name: str) -> "Golden":
        with np.load(GOLDEN / f"{name}.npz") as file:
            meta, logits = json.loads(str(file["meta"])), torch.from_numpy(file["logits"])
        state = {key: number(key, shape, kind) for key, shape, kind in meta["state"]}
        shape = (meta["batch"], 3, meta["height"], meta["width"])
        return cls(meta["name"], state, normal(7, shape), logits)


def names() -> list[str]:
    return sorted(path.stem for path in GOLDEN.glob("*.npz"))


def normal(seed: int, shape: tuple[int, ...] | list[int]) -> Tensor:
    return torch.from_numpy(np.random.RandomState(seed).standard_normal(shape).astype(np.float32))


def number(key: str, shape: list[int], kind: str = "fill") -> Tensor:
    """The tensor that belongs to a key of a state dict."""
    if kind == "buffer":
        return torch.zeros(shape, dtype=torch.int64)
    x, last = normal(zlib.crc32(key.encode()), shape), key.rpartition(".")[2]
    if last == "weight":
        return 1 + 0.1 * x if x.ndim == 1 else x / float(np.sqrt(np.prod(shape[1:])))
    scaled = {"running_var": 1 + 0.1 * x.abs(), "running_mean": 0.1 * x, "bias": 0.05 * x}
    return scaled.get(last, 0.1 * x)


def enliven(model: nn.Module) -> nn.Module:
    """Weights by name for any model, with positions that are large enough to matter."""
    state = model.state_dict()
    drawn = {key: _lively(key, tuple(value.shape)) for key, value in state.items() if value.is_floating_point()}
    model.load_state_dict({**state, **drawn})
    return model


@lru_cache(20_000)  # small models have the same weights again and again
def _lively(key: str, shape: tuple[int, ...]) -> Tensor:
    if "pos_embed" in key or "position_bias" in key:
        return 0.5 * normal(zlib.crc32(key.encode()), shape)
    return number(key, list(shape))
