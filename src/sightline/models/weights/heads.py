"""How many heads weights were trained with.

The shapes of qkv and proj are the same for any number of heads, so weights with another number would load silently
and give wrong outputs. Some mechanisms show the number in their own tensors (`shapes`); otherwise a card, a config.json
next to the weights, or the name of the architecture records it.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import timm
import torch
from torch import nn

from sightline.models.sequence import SEQUENCE_HEADS, SEQUENCE_MODELS
from sightline.models.weights.fit import heads_of
from sightline.models.weights.identify import arguments
from sightline.models.weights.reader import Weights
from sightline.models.weights.recorded import read_arguments
from sightline.models.weights.shapes import Layout
from sightline.models.zoo import VARIANTS
from sightline.util.documents import DAMAGE, read_text
from sightline.util.errors import FileError

CONFIG = "config.json"  # of timm and Hugging Face, next to the weights
MAX_CONFIG = 1 << 20  # bytes
KEYS = ("num_heads", "num_attention_heads")
PUBLISHED_WIDTH = 64  # channels per head in every published ViT and DeiT with softmax


@dataclass(frozen=True)
class RecordedHeads:
    """Heads per stage, and where they are recorded."""

    counts: tuple[int, ...]
    source: str

    def __str__(self) -> str:
        return ", ".join(map(str, self.counts))


def recorded_heads(weights: Weights) -> RecordedHeads | None:
    """The heads that a file, or the config.json next to it, records; None if neither does."""
    metadata, config = weights.metadata, _config(weights.path.parent / CONFIG)
    name = metadata.get("model", "")
    if name in VARIANTS or name in SEQUENCE_MODELS:
        given = None
        with suppress(FileError):
            given = read_arguments(metadata).get("num_heads")
        usual = arguments(name)["num_heads"] if name in VARIANTS else SEQUENCE_HEADS
        return _counts(given or usual, "its metadata")
    model_args = config.get("model_args")
    records: list[tuple[Mapping[str, object], str]] = [(metadata, "its metadata"), (config, CONFIG)]
    if isinstance(model_args, dict):
        records.append((model_args, CONFIG))
    for values, source in records:
        for value in (values.get(key) for key in KEYS):  # metadata keeps numbers as text
            if found := _counts(_json(value) if isinstance(value, str) else value, source):
                return found
    for architecture in (config.get("architecture"), metadata.get("architecture"), weights.architecture):
        if isinstance(architecture, str) and (heads := _timm_heads(architecture)):
            return RecordedHeads((heads,), f"the architecture {architecture}")
    return None


def with_heads(layout: Layout, counts: Sequence[int | None]) -> Layout:
    """The layout with `counts` heads in the stages whose shapes show none; unchanged if it has other stages."""
    if len(counts) != len(layout.num_heads):
        return layout
    heads = (shown or count for shown, count in zip(layout.num_heads, counts, strict=True))
    return replace(layout, num_heads=tuple(heads))


def published_heads(layout: Layout) -> list[int | None]:
    """The heads of a published ViT, which all have the same width; None if it does not divide the channels."""
    return [dim // PUBLISHED_WIDTH if dim % PUBLISHED_WIDTH == 0 else None for dim in layout.embed_dims]


def check_recorded(weights: Weights, model: nn.Module) -> None:
    """Reject weights that record another number of heads than `model` has.

    Raises:
        FileError: names the file, both numbers and the argument to pass.
    """
    recorded, own = recorded_heads(weights), heads_of(model)
    stages: dict[str, int] = {}
    for block, heads in own.items():
        stages.setdefault(block.partition("blocks.")[0], heads)
    counts = tuple(stages.values())
    if recorded is not None and len(recorded.counts) == len(counts) and recorded.counts != counts:
        given = recorded.counts[0] if len(counts) == 1 else recorded.counts
        raise FileError(
            f"{weights.path}: trained with {recorded} heads according to {recorded.source}, but the model has "
            f"{', '.join(map(str, counts))}; build it with num_heads={given}"
        )


def _config(path: Path) -> Mapping[str, object]:
    """A config.json; empty if missing, too large or damaged."""
    try:
        found = json.loads(read_text(path, MAX_CONFIG))
    except DAMAGE:
        return {}
    return found if isinstance(found, dict) else {}


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _counts(value: object, source: str) -> RecordedHeads | None:
    counts = tuple(value) if isinstance(value, list | tuple) else (value,)
    whole = all(isinstance(count, int) and not isinstance(count, bool) and count > 0 for count in counts)
    return RecordedHeads(counts, source) if counts and whole else None


def _timm_heads(architecture: str) -> int | None:
    """The heads of a timm model; None if timm does not have it, or its blocks differ in them."""
    name = architecture.partition(".")[0]
    if not timm.is_model(name) or name in VARIANTS:
        return None
    with torch.device("meta"):
        model = timm.create_model(name)
    found = {module.num_heads for module in model.modules() if isinstance(getattr(module, "num_heads", None), int)}
    return found.pop() if len(found) == 1 else None
