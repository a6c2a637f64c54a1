"""Model cards: the metadata that makes a weight file self-contained for classification."""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from sightline.util.errors import FileError
from sightline.util.provenance import VERSION

INPUT = ("input_size", "mean", "std", "interpolation", "crop_pct")
INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "box", "hamming", "lanczos", "random")
MAX_SIDE = 65536  # pixels; more is damage
T = TypeVar("T")


class CardError(FileError):
    """Metadata that does not describe a model; the message is one line."""


@dataclass(frozen=True)
class ModelCard:
    """A classifier and its input.

    Args:
        name: registered name of the model.
        arguments: what it was built with besides its name; JSON can hold it.
        classes: name of every class, in the order of the model's outputs.
        input_size: (channels, height, width) that it was trained at.
        mean, std: of the images, one number per channel.
        interpolation: of the resizing before the crop.
        crop_pct: side of the crop as a share of the resized image, at most 1.

    `to_metadata` and `from_metadata` go through the strings of a safetensors file:

        ModelCard.from_metadata(card.to_metadata()) == card
    """

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    input_size: tuple[int, int, int] = (3, 224, 224)
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    interpolation: str = "bicubic"
    crop_pct: float = 0.9

    @property
    def title(self) -> str:
        """A short description of the model."""
        from sightline.tasks.describe import describe

        return describe(self.name, self.arguments)

    def to_metadata(self) -> dict[str, str]:
        """The card as safetensors keeps it; `model` and `model_args` are what `sightline convert` writes too."""
        values = asdict(self)
        return {
            "format": "pt",
            "sightline": VERSION,
            "model": self.name,
            "model_args": json.dumps(self.arguments),
            "classes": json.dumps(list(self.classes)),
            "input": json.dumps({key: values[key] for key in INPUT}),
        }

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str]) -> "ModelCard | None":
        """The card in the metadata of a file; None if missing, as in public checkpoints.

        Raises:
            CardError: there is one, and it is damaged.
        """
        if not {"model", "classes", "input"} <= metadata.keys():
            return None
        arguments = _load(metadata, "model_args", dict)
        classes = _load(metadata, "classes", list)
        if not all(isinstance(name, str) for name in classes):
            raise CardError("the metadata entry 'classes' is not a list of names; save the weights again")
        return cls(metadata["model"], arguments, tuple(classes), **_input(_load(metadata, "input", dict)))


def _load(metadata: Mapping[str, str], key: str, kind: type) -> Any:
    try:
        value = json.loads(metadata.get(key, "{}"))
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, kind):
        raise CardError(f"the metadata entry {key!r} is damaged; save the weights again")
    return value


def _input(values: dict[str, Any]) -> dict[str, Any]:
    """The fields about images, each checked: they come from a file."""
    size, mean, std = (_numbers(values, key) for key in ("input_size", "mean", "std"))
    if len(size) != 3 or not all(side == int(side) and 0 < side <= MAX_SIDE for side in size):
        raise CardError(f"input_size={values.get('input_size')!r} is not (channels, height, width)")
    if not len(mean) == len(std) == int(size[0]) or min(std) <= 0:
        raise CardError(f"mean={mean} and std={std} do not fit images of {int(size[0])} channels")
    if values.get("interpolation") not in INTERPOLATIONS:
        raise CardError(f"interpolation={values.get('interpolation')!r} is not one of {', '.join(INTERPOLATIONS)}")
    crop = values.get("crop_pct")
    if not isinstance(crop, int | float) or not 0 < crop <= 1:
        raise CardError(f"crop_pct={crop!r} is not between 0 and 1")
    channels, height, width = (int(side) for side in size)
    return {
        "input_size": (channels, height, width),
        "mean": mean,
        "std": std,
        "interpolation": values["interpolation"],
        "crop_pct": float(crop),
    }


def _numbers(values: dict[str, Any], key: str) -> tuple[float, ...]:
    given = values.get(key)
    if not isinstance(given, list) or not given or not all(_is_number(value) for value in given):
        raise CardError(f"{key}={given!r} is not a list of numbers; save the weights again")
    return tuple(float(value) for value in given)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def read_fields(kind: type[T], values: object, where: str) -> T:
    """A dataclass from the JSON of a card; types and limits are those of its fields (`tasks.options.entry`).

    Args:
        kind: a dataclass of numbers, texts, tuples and other such dataclasses.
        values: from the file; keys that `kind` does not have are ignored.
        where: what they describe, for messages.

    Raises:
        CardError: a field is missing, of the wrong type or beyond its limits.
    """
    if not isinstance(values, dict):
        raise CardError(f"its card is damaged ({where} is {repr(values)[:60]}); save the weights again")
    hints = get_type_hints(kind)
    found: dict[str, object] = {}
    for item in fields(kind):  # type: ignore[arg-type]
        if item.name not in values:
            raise CardError(f"its card is damaged (no {item.name} in {where}); save the weights again")
        value = values[item.name]
        hint = hints[item.name]
        if isinstance(hint, type) and is_dataclass(hint):
            found[item.name] = read_fields(hint, value, item.name)
            continue
        try:
            found[item.name] = _typed(value, hint, item.metadata)
        except ValueError as error:
            raise CardError(
                f"its card is damaged ({where} has {item.name}={repr(value)[:60]}); save the weights again"
            ) from error
    return kind(**found)


def _typed(value: object, hint: Any, limits: Mapping[str, Any]) -> object:
    """A JSON value as the type `hint`; ValueError if it is not of that type, or beyond the limits."""
    origin, options = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        for option in options:
            with contextlib.suppress(ValueError):
                return _typed(value, option, limits)
    elif origin is Literal and value in options:
        return value
    elif origin is tuple and isinstance(value, list) and value:
        kinds = options[:1] * len(value) if options[-1] is Ellipsis else options
        return tuple(_typed(item, each, limits) for item, each in zip(value, kinds, strict=True))
    elif hint in (bool, NoneType) and isinstance(value, hint):
        return value
    elif hint in (int, float) and _is_number(value):
        least, most = limits.get("least"), limits.get("most")
        if (hint is float or isinstance(value, int)) and not (
            (least is not None and value < least) or (most is not None and value > most)
        ):
            return hint(value)
    raise ValueError(f"{value!r} is not of {hint}")
