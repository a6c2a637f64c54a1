"""A short description of a model: its name, and the arguments that differ from its defaults."""

from collections.abc import Mapping, Sequence
from typing import Any

from sightline.layers.pattern import format_pattern, parse_pattern
from sightline.models.base import Arguments
from sightline.models.weights.identify import arguments
from sightline.models.zoo import VARIANTS
from sightline.util.files import jsonable

TASK = ("img_size", "num_classes", "in_chans", "attention")  # shown elsewhere


def describe(name: str, args: Mapping[str, Any] | None) -> str:
    """`soft_tiny` with `attention: inline` -> "inline attention in the soft_tiny backbone (embed_dims 24-48-96-96)".

    Args:
        name: of the model.
        args: what it was built with besides its name.
    """
    given = dict(args or {})
    own = arguments(name) if name in VARIANTS else {}
    changed = {
        key: value for key, value in given.items() if key not in TASK and jsonable(own.get(key)) != jsonable(value)
    }
    listed = ", ".join(f"{key} {_short(value)}" for key, value in changed.items())
    title = name
    if attention := _other_attention(own, given):
        title = f"{attention} attention in the {name} backbone"
    return f"{title} ({listed})" if listed else title


def _other_attention(own: Arguments, given: Arguments) -> str | None:
    """The requested mechanisms, if they are not the defaults of the model."""
    if "attention" not in given:
        return None
    if "attention" not in own:
        return str(given["attention"])
    try:
        depths: Sequence[int] = given["depths"] if "depths" in given else own["depths"]
        patterns = [parse_pattern(attention, depths) for attention in (given["attention"], own["attention"])]
    except (ValueError, TypeError):
        return str(given["attention"])
    if patterns[0] == patterns[1]:
        return None
    kinds = {spec.name for stage in patterns[0] for spec in stage}
    return next(iter(kinds)) if len(kinds) == 1 else format_pattern(patterns[0])


def _short(value: object) -> str:
    return "-".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
