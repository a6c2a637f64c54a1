"""What a file of weights records about a segmenter or detector."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Generic, Protocol, TypeVar, cast

from sightline.tasks.card import CardError, ModelCard, read_fields


class Head(Protocol):
    """What all heads have: a name, and the size at which images are evaluated."""

    @property
    def name(self) -> str: ...

    @property
    def short(self) -> int | None: ...

    @property
    def long(self) -> int: ...


H = TypeVar("H", bound=Head)


@dataclass(frozen=True, kw_only=True)
class DenseCard(ModelCard, Generic[H]):
    """A backbone as in `ModelCard`, and the head on it.

    Args:
        task: "segmentation" or "detection".
        head: a dataclass: arguments of the head, and how images are evaluated.
    """

    task: str
    head: H

    @property
    def title(self) -> str:
        return f"{self.head.name} on {super().title}"

    def to_metadata(self) -> dict[str, str]:
        head = asdict(cast(Any, self.head))
        return super().to_metadata() | {"task": self.task, "head": json.dumps(head)}

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
        if base is None or not base.classes or not isinstance(values, dict):
            raise CardError("the metadata of these weights is damaged; save the weights again")
        if base.input_size[0] != 3:
            raise CardError(f"input_size={base.input_size} is not for color images; save the weights again")
        shared = {item.name: getattr(base, item.name) for item in fields(ModelCard)}
        return cls(**shared, task=metadata["task"], head=read_fields(head, values, "head"))


def jsonable(value: object) -> Any:
    """Arguments as JSON keeps them: mappings as dictionaries, sequences as lists."""
    if isinstance(value, Mapping):
        return {key: jsonable(item) for key, item in value.items()}
    return [jsonable(item) for item in value] if isinstance(value, list | tuple) else value
