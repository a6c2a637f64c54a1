"""`--query`: whose attention to look at."""

from typing import TYPE_CHECKING

from sightline.cli.options import UsageError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from sightline.analysis.maps import Patch, Query


def parse_query(text: str | None) -> "Query | Patch":
    """`3,7` -> a patch; `0.5,0.25` -> shares of the image; `class` -> None; the middle by default."""
    from sightline.analysis.maps import Patch

    if text is None:
        return 0.5, 0.5
    if text.strip().lower() == "class":
        return None
    try:
        if "." not in text:
            patch = Patch(*(int(part) for part in text.split(",")))
            if min(patch) >= 0:
                return patch
        down, across = (float(part) for part in text.split(","))
    except (ValueError, TypeError):
        down = across = -1.0
    if not (0 <= down <= 1 and 0 <= across <= 1):
        raise UsageError(
            f"--query: {text!r} is no place; give a patch as row,column, shares of the image from 0.0,0.0 to 1.0,1.0, "
            f"or class"
        )
    return down, across


def find_query(query: "Query | Patch", model: "nn.Module", image: "Tensor") -> "Query":
    """A query as shares of an image that the model sees."""
    from sightline.analysis.maps import in_shares

    try:
        return in_shares(query, model, image)
    except ValueError as error:
        raise UsageError(f"--query: {error}") from error
