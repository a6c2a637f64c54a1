"""Cards: the metadata that makes a weight file self-contained."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Json, TypeAdapter, ValidationError, model_validator
from pydantic import Field as Limit

from sightline.data.images import MAX_LOADED
from sightline.models.weights.recorded import CardError as CardError
from sightline.models.weights.recorded import read_arguments
from sightline.util.names import MAX_SIDE
from sightline.util.provenance import VERSION
from sightline.util.text import printable

T = TypeVar("T")
E = TypeVar("E", bound="CardEntries")
Side = Annotated[int, Limit(gt=0, le=MAX_SIDE)]
Mean = Annotated[float, Limit(ge=-1e6, le=1e6)]
Deviation = Annotated[float, Limit(ge=1e-6, le=1e6)]
ClassName = Annotated[str, Limit(max_length=1000)]
MAX_INPUT = 1 << 24  # pixels


@dataclass(frozen=True)
class TaskCard:
    """The fields of every card; a task adds its own.

    Args:
        name: registered name of the model, or of the backbone.
        arguments: what it was built with besides its name; JSON can hold it.
        classes: name of every class, in the order of the model's outputs; empty if unknown.

    `to_metadata` and `from_metadata` go through the strings of a safetensors file:

        ModelCard.from_metadata(card.to_metadata()) == card
    """

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    input_size: tuple[int, ...] = ()  # (channels, height, width) of images, (length,) of sequences

    @property
    def title(self) -> str:
        """A short description of the model."""
        from sightline.tasks.describe import describe

        return describe(self.name, self.arguments)

    def to_metadata(self) -> dict[str, str]:
        """The card as safetensors keeps it; `model` and `model_args` are what `sightline convert` writes too."""
        return {
            "format": "pt",
            "sightline": VERSION,
            "model": self.name,
            "model_args": json.dumps(self.arguments),
            "classes": json.dumps(list(self.classes)),
        }


@dataclass(frozen=True)
class ModelCard(TaskCard):
    """A classifier of images.

    Args:
        input_size: (channels, height, width) that it was trained at.
        mean, std: of the images, one number per channel.
        interpolation: of the resizing before the crop.
        crop_pct: side of the crop as a share of the resized image, at most 1.
    """

    input_size: tuple[int, int, int] = (3, 224, 224)
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    interpolation: str = "bicubic"
    crop_pct: float = 0.9

    def to_metadata(self) -> dict[str, str]:
        values = asdict(self)
        return super().to_metadata() | {"input": json.dumps({key: values[key] for key in _Input.model_fields})}

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str]) -> "ModelCard | None":
        """The card in the metadata of a file; None if missing, as in public checkpoints.

        Raises:
            CardError: there is one, and it is damaged.
        """
        if not {"model", "classes", "input"} <= metadata.keys():
            return None
        read = read_entries(_Entries, metadata)
        input, channels = read.input, read.input.input_size[0]
        if not len(input.mean) == len(input.std) == channels:
            raise CardError(f"mean={input.mean} and std={input.std} do not fit images of {channels} channels")
        return cls(read.model, read_arguments(metadata), read.classes, **dict(input))


class CardEntries(BaseModel):
    """The entries of every card in the metadata of a file."""

    model: Annotated[str, Limit(max_length=100)]
    classes: Json[Annotated[tuple[ClassName, ...], Limit(max_length=1_000_000)]]


class _Input(BaseModel):
    model_config = ConfigDict(allow_inf_nan=False)
    input_size: tuple[Side, Side, Side]
    mean: tuple[Mean, ...]
    std: tuple[Deviation, ...]
    interpolation: Literal["nearest", "bilinear", "bicubic", "box", "hamming", "lanczos", "random"]
    crop_pct: Annotated[float, Limit(gt=0, le=1)]

    @model_validator(mode="after")
    def _limit(self) -> "_Input":
        _, height, width = self.input_size
        if height * width > MAX_INPUT or height * width > MAX_LOADED * self.crop_pct**2:
            raise ValueError(f"{height}x{width} with crop_pct={self.crop_pct} is too large")
        return self


class _Entries(CardEntries):
    input: Json[_Input]


def read_entries(kind: type[E], metadata: Mapping[str, str]) -> E:
    """The entries of a card.

    Raises:
        CardError: one is missing or damaged.
    """
    try:
        return kind.model_validate(metadata)
    except ValidationError as error:
        raise _damaged(error, "metadata") from error


def read_fields(kind: type[T], values: object, where: str) -> T:
    """A dataclass from the JSON of a card; types and limits are those of its fields.

    Args:
        kind: a dataclass of numbers, texts, tuples and other such dataclasses.
        values: from the file; keys that `kind` does not have are ignored.
        where: what they describe, for messages.

    Raises:
        CardError: a field is missing, of the wrong type or beyond its limits.
    """
    adapter = TypeAdapter(kind)
    try:  # strictly as JSON: a list is a tuple, but true is no number and "1" is none
        found = adapter.validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        raise _damaged(error, where) from error
    for name in _missing(adapter.dump_python(found), values):  # for which a configuration has a default
        raise CardError(f"its card is damaged ({where}.{name} is missing); save the weights again")
    return found


def _missing(all_fields: dict[str, Any], values: Any) -> Iterator[str]:
    for name, value in all_fields.items():
        if name not in values:
            yield name
        elif isinstance(value, dict):
            yield from _missing(value, values[name])


def _damaged(error: ValidationError, where: str) -> CardError:
    first = error.errors(include_url=False)[0]
    path = ".".join(printable(part, 40) for part in (where, *first["loc"]))
    return CardError(f"its card is damaged ({path}: {printable(first['msg'], 200)}); save the weights again")
