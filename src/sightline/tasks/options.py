"""Keys of a typed configuration: a default, limits and a line of help in the metadata of a dataclass field."""

from dataclasses import field
from typing import TypeVar, cast

V = TypeVar("V")


def entry(
    default: V,
    help: str,
    *,
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> V:
    """A key of the configuration with its default and its limits, of a number or of every number of a tuple.

    Args:
        least, most: may be reached.
        above, below: may not.
    """
    metadata = {"help": help, "least": least, "most": most, "above": above, "below": below}
    if isinstance(default, dict):
        return cast(V, field(default_factory=lambda: dict(default), metadata=metadata))
    return field(default=default, metadata=metadata)
