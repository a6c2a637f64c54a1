"""What a model is, in words: its name alone says little once its attention or its sizes are others."""

from collections.abc import Mapping
from typing import Any

from sightline.layers.pattern import format_pattern, parse_pattern
from sightline.models.weights.identify import arguments
from sightline.models.zoo import VARIANTS

TASK = ("img_size", "num_classes", "in_chans", "attention")  # told elsewhere


def describe(name: str, args: Mapping[str, Any] | None) -> str:
    """`soft_tiny` with `attention: inline` -> "inline attention in the soft_tiny backbone (embed_dims 24-48-96-96)".

    Args:
        name: of the model.
        args: what it was built with besides its name.
    """
    given = args if isinstance(args, Mapping) else {}
    if name not in VARIANTS:
        own: dict[str, Any] = {}
    else:
        own = arguments(name)
    changed = {key: value for key, value in given.items() if key not in TASK and _list(own.get(key)) != _list(value)}
    listed = ", ".join(f"{key} {_short(value)}" for key, value in changed.items())
    words = name
    if attention := _other_attention(own, given):
        words = f"{attention} attention in the {name} backbone"
    return f"{words} ({listed})" if listed else words


def _other_attention(own: Mapping[str, Any], given: Mapping[str, Any]) -> str | None:
    """The mechanisms that were asked for, where the model has others of its own."""
    if "attention" not in given:
        return None
    if "attention" not in own:
        return str(given["attention"])
    try:
        depths = given.get("depths", own["depths"])
        patterns = [parse_pattern(attention, depths) for attention in (given["attention"], own["attention"])]
    except (ValueError, TypeError):
        return str(given["attention"])
    if patterns[0] == patterns[1]:
        return None
    kinds = {spec.name for stage in patterns[0] for spec in stage}
    return next(iter(kinds)) if len(kinds) == 1 else format_pattern(patterns[0])


def _list(value: Any) -> Any:
    return list(value) if isinstance(value, list | tuple) else value


def _short(value: Any) -> str:
    return "-".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
