"""Keys of a typed configuration: a default, limits and a line of help in the metadata of a dataclass field."""

from dataclasses import field
from typing import Any


def entry(default: Any, help: str, *, least: float | None = None, most: float | None = None) -> Any:
    """A key of the configuration with its default; `least` and `most` limit a number, or every number of a tuple."""
    metadata = {"help": help, "least": least, "most": most}
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)
