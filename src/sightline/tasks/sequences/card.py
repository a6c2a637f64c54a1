"""What a file of weights records, so that sequences can be classified with it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, Field, Json

from sightline.models.weights.recorded import read_arguments
from sightline.tasks.card import CardEntries, TaskCard, read_entries
from sightline.tasks.sequences.config import TaskName


@dataclass(frozen=True)
class SequenceCard(TaskCard):
    """A classifier of sequences of a task; `input_size` has the length to which they are cut."""

    input_size: tuple[int] = (2000,)
    task: TaskName = "listops"

    @property
    def length(self) -> int:
        return self.input_size[0]

    @property
    def title(self) -> str:
        """The model and its mechanism."""
        return f"{self.name} ({self.arguments.get('attention', 'softmax')})"

    def to_metadata(self) -> dict[str, str]:
        return super().to_metadata() | {"sequences": json.dumps({"task": self.task, "length": self.length})}

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str]) -> "SequenceCard":
        """The card in the metadata of a file.

        Raises:
            CardError: it is damaged.
        """
        read = read_entries(_Entries, metadata)
        return cls(read.model, read_arguments(metadata), read.classes, (read.sequences.length,), read.sequences.task)


class _Sequences(BaseModel):
    task: TaskName
    length: Annotated[int, Field(ge=1)]


class _Entries(CardEntries):
    sequences: Json[_Sequences]
