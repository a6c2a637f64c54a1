"""What a file of weights records about a segmenter or detector."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any, Generic, TypeVar, cast

from pydantic import Field

from sightline.tasks.card import CardError, ModelCard, Side, read_fields
from sightline.tasks.dense.config import DenseData, DenseModel
from sightline.util.files import jsonable


@dataclass(frozen=True, kw_only=True)
class DenseHead:
    """The part of a card about the head, and how images are evaluated; a task adds its own fields."""

    name: str
    channels: Annotated[int, Field(ge=8, le=8192)]  # of the decoder or feature pyramid
    short: Side | None  # pixels
    long: Side


H = TypeVar("H", bound=DenseHead)


@dataclass(frozen=True, kw_only=True)
class DenseCard(ModelCard, Generic[H]):
    """A backbone as in `ModelCard`, and the head on it.

    Args:
        task: "segmentation" or "detection".
        head: its arguments, and how images are evaluated.
    """

    task: str
    head: H

    @classmethod
    def of(
        cls, task: str, model: DenseModel, data: DenseData, classes: tuple[str, ...], size: tuple[int, int], head: H
    ) -> "DenseCard[H]":
        """The card of a run."""
        return cls(
            name=model.name, arguments=cast("dict[str, Any]", jsonable(dict(model.args))), classes=classes,
            input_size=(3, *size), mean=data.mean, std=data.std, interpolation="bilinear", crop_pct=1.0, task=task,
            head=head,
        )  # fmt: skip

    @property
    def title(self) -> str:
        return f"{self.head.name} on {super().title}"

    def to_metadata(self) -> dict[str, str]:
        return super().to_metadata() | {"task": self.task, "head": json.dumps(asdict(self.head))}

    @classmethod
    def read(cls, metadata: Mapping[str, str], head: type[H]) -> "DenseCard[H]":
        """The card in the metadata of a file whose task is known.

        Raises:
            CardError: it is damaged.
        """
        base = ModelCard.from_metadata(metadata)
        try:
            values = json.loads(metadata.get("head", ""))
        except (ValueError, RecursionError):
            values = None
        if base is None or not base.classes or base.input_size[0] != 3:
            raise CardError("its card is damaged (no classes, or not for color images); save the weights again")
        shared = {item.name: getattr(base, item.name) for item in fields(ModelCard)}
        return cls(**shared, task=metadata["task"], head=read_fields(head, values, "head"))
