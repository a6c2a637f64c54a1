"""COCO's JSON of instances, read as data and checked, and its masks: polygons, and run lengths as lists or text."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import numpy as np
from pydantic import BaseModel, Field, TypeAdapter, ValidationError, model_validator
from pydantic.dataclasses import dataclass
from torch import Tensor
from torchvision.ops import box_convert

from sightline.util.documents import read_text
from sightline.util.errors import FileError

MOST = 2**28  # pixels of an image; larger ones are not decoded
REACH = 10**6  # pixels to the furthest point of a polygon; drawing takes memory by the length
UNREADABLE = (ValueError, TypeError, LookupError, RuntimeError, ArithmeticError)  # what damaged masks raise
Json: TypeAlias = dict[str, Any]  # an object of a JSON file
Whole = Annotated[int, Field(strict=True)]
Number = Annotated[float, Field(strict=True, ge=-1e300, le=1e300, allow_inf_nan=False)]
Name = Annotated[str, Field(pattern=r"\S")]
Polygon = Annotated[list[Annotated[float, Field(ge=-REACH, le=REACH, allow_inf_nan=False)]], Field(min_length=6)]
POLYGONS = TypeAdapter(Annotated[list[Polygon], Field(min_length=1)])


class Picture(BaseModel):
    """An image in the file."""

    id: Whole
    file_name: Name
    height: Annotated[Whole, Field(gt=0)]
    width: Annotated[Whole, Field(gt=0)]

    @model_validator(mode="after")
    def _limit(self) -> "Picture":
        if self.height * self.width > MOST:
            raise ValueError(f"{self.height}x{self.width} is more than {MOST} pixels")
        return self


class Category(BaseModel):
    """A class in the file."""

    id: Whole
    name: Name


@dataclass(slots=True)
class Annotation:
    """An object in the file, or a crowd of them; the mask is checked by `check_mask`."""

    image_id: Whole
    category_id: Whole
    bbox: Annotated[list[Number], Field(min_length=4, max_length=4)]  # left, top, width, height
    iscrowd: Annotated[int, Field(ge=0, le=1)] = 0
    segmentation: Any = None
    area: Any = None
    id: Any = None


ANNOTATION = TypeAdapter(Annotation)


class Runs(BaseModel):
    """A mask as run lengths down the columns, zeros first."""

    size: tuple[int, int]
    counts: str | list[Annotated[Whole, Field(ge=0)]]


class Content(BaseModel):
    """A COCO file; its annotations are checked one by one when a split takes them."""

    images: Annotated[list[Picture], Field(min_length=1)]
    categories: Annotated[list[Category], Field(min_length=1)]
    annotations: list[Json]


def load(path: Path) -> Content:
    """The JSON file.

    Raises:
        FileError: it cannot be read, a field is missing or of the wrong type, or an id comes twice.
    """
    try:
        content = Content.model_validate_json(read_text(path))
    except (OSError, ValueError) as error:
        raise FileError(f"{path}: cannot be read as COCO instances ({reason(error)}); fix the file") from error
    for what, rows in (("images", content.images), ("categories", content.categories)):
        number, times = Counter(row.id for row in rows).most_common(1)[0]
        if times > 1:
            raise FileError(f"{path}: {times} {what} with id {number}; fix the file")
    return content


def decode(segmentation: Any, height: int, width: int) -> np.ndarray:
    """Polygons, or run lengths as a list or a string, -> (height, width) of 0 and 1.

    Raises:
        ValueError: there is no mask, or it is for an image of another size; damage may raise others of UNREADABLE.
    """
    from faster_coco_eval import mask as tools

    checked = check_mask(segmentation, height, width)
    if isinstance(checked, list):
        return tools.decode(tools.merge(tools.frPyObjects(checked, height, width)))
    return tools.decode(tools.frPyObjects(checked, height, width) if isinstance(checked["counts"], list) else checked)


def check_mask(segmentation: Any, height: int, width: int) -> list[list[float]] | Json:
    """Polygons or run lengths that can be decoded; raises what `decode` does, without drawing polygons."""
    from faster_coco_eval import mask as tools

    if not isinstance(segmentation, dict):
        polygons = POLYGONS.validate_python(segmentation)
        if any(len(polygon) % 2 for polygon in polygons):
            raise ValueError("a polygon has an odd number of coordinates")
        return polygons
    runs = Runs.model_validate(segmentation)
    if runs.size != (height, width):
        raise ValueError(f"it is {runs.size[0]}x{runs.size[1]}, the image {height}x{width}")
    if isinstance(runs.counts, list) and sum(runs.counts) != height * width:
        raise ValueError("its run lengths do not fill the image")
    checked = runs.model_dump()
    if isinstance(runs.counts, str):
        tools.decode(checked)
    return checked


def encode(mask: Tensor) -> Json:
    """A mask (H, W) as COCO's run lengths, in text."""
    from faster_coco_eval import mask as tools

    return Runs.model_validate(tools.encode(np.asfortranarray(mask.numpy().astype(np.uint8)))).model_dump()


def to_coco(found: Mapping[str, Tensor], image: int, categories: Sequence[int]) -> list[Json]:
    """What a detector found in an image, in its own pixels, as COCO's results."""
    boxes = box_convert(found["boxes"].double(), "xyxy", "xywh").tolist()
    rows: list[Json] = [
        {"image_id": image, "category_id": categories[label - 1], "bbox": box, "score": value}
        for box, value, label in zip(boxes, found["scores"].tolist(), found["labels"].tolist(), strict=True)
    ]
    if "masks" in found:
        return [{**row, "segmentation": encode(mask)} for row, mask in zip(rows, found["masks"], strict=True)]
    return rows


def reason(error: Exception) -> str:
    """What is wrong, in one line."""
    text = str(error)
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        text = f"{where}: {first['msg']}, got {repr(first['input'])[:60]}" if where else first["msg"]
    return " ".join(text.split())[:200]
