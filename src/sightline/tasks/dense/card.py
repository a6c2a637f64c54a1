"""What a file of weights says of a segmenter or detector."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from sightline.tasks.classification.card import CardError, ModelCard

TASKS = ("segmentation", "detection")


@dataclass(frozen=True)
class DenseCard(ModelCard):
    """A backbone as in `ModelCard`, and what stands on it.

    Args:
        task: "segmentation" or "detection".
        head: arguments of the head, and how images are evaluated.
    """

    task: str = "segmentation"
    head: dict[str, Any] = field(default_factory=dict)

    def to_metadata(self) -> dict[str, str]:
        return super().to_metadata() | {"task": self.task, "head": json.dumps(self.head)}

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str]) -> "DenseCard | None":
        """The card in the metadata of a file; None where there is none, or one of a classifier.

        Raises:
            CardError: there is one, and it is damaged.
        """
        if metadata.get("task") not in TASKS:
            return None
        base = ModelCard.from_metadata(metadata)
        try:
            head = json.loads(metadata.get("head", ""))
        except (ValueError, RecursionError):
            head = None
        if base is None or not base.classes or not isinstance(head, dict):
            raise CardError("the metadata of these weights is damaged; write the weights again")
        values = {item.name: getattr(base, item.name) for item in fields(ModelCard)}
        return cls(**values, task=metadata["task"], head=head)
