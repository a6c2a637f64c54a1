"""Parse queries: the position of an image whose attention is drawn."""

from torch import Tensor, nn

from sightline.analysis.maps import Patch, Query, in_shares
from sightline.util.errors import InputError

CENTRE = "0.5,0.5"


def parse_query(text: str | None, option: str = "--query") -> Query | Patch:
    """`3,7` -> a patch; `0.5,0.25` -> fractions of height and width; `class` -> None; the center by default.

    Raises:
        InputError: none of these; names `option` and the text.
    """
    words = (CENTRE if text is None else text).strip().lower()
    if words == "class":
        return None
    try:
        numbers = tuple(float(word) if "." in words else int(word) for word in words.split(","))
    except ValueError:
        numbers = ()
    if len(numbers) == 2 and min(numbers) >= 0:
        down, across = numbers
        if isinstance(down, int) and isinstance(across, int):
            return Patch(down, across)
        if max(numbers) <= 1:
            return float(down), float(across)
    raise InputError(
        f"{option}: expected a patch as row,column, e.g. 3,7; fractions of the image from 0.0,0.0 to 1.0,1.0; or "
        f"class; got {text!r}"
    )


def find_query(query: Query | Patch, model: nn.Module, image: Tensor, option: str = "--query") -> Query:
    """A query as fractions of an image (channels, height, width) that is given to the model.

    Raises:
        InputError: the model has no such patch; names `option`.
    """
    try:
        return in_shares(query, model, image)
    except ValueError as error:
        raise InputError(f"{option}: {error}") from error
