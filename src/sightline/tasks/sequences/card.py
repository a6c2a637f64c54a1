"""What a file of weights records, so that sequences can be classified with it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from sightline.tasks.sequences.data import SEQUENCE_TASKS
from sightline.util.errors import FileError
from sightline.util.provenance import VERSION


@dataclass(frozen=True)
class SequenceCard:
    """A classifier of sequences.

    Args:
        name: of the model.
        arguments: what it was built with besides its name; JSON can hold it.
        classes: name of every class, in the order of the model's outputs.
        task: which sequences.
        length: where they are cut.
    """

    name: str
    arguments: dict[str, object] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    task: str = "listops"
    length: int = 2000

    @property
    def input_size(self) -> tuple[int, ...]:
        return (self.length,)

    @property
    def title(self) -> str:
        """The model and its mechanism."""
        return f"{self.name} ({self.arguments.get('attention', 'softmax')})"

    def to_metadata(self) -> dict[str, str]:
        """The card as safetensors keeps it."""
        return {
            "format": "pt",
            "sightline": VERSION,
            "model": self.name,
            "model_args": json.dumps(self.arguments),
            "classes": json.dumps(list(self.classes)),
            "sequences": json.dumps({"task": self.task, "length": self.length}),
        }

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str]) -> "SequenceCard":
        """The card in the metadata of a file.

        Raises:
            FileError: it is damaged.
        """
        try:
            arguments, classes, about = (json.loads(metadata[key]) for key in ("model_args", "classes", "sequences"))
            task, length = about["task"], about["length"]
            whole = isinstance(arguments, dict) and all(isinstance(name, str) for name in classes)
            if not whole or task not in SEQUENCE_TASKS or not isinstance(length, int) or length < 1:
                raise ValueError("values that do not fit")
            return cls(metadata["model"], arguments, tuple(classes), task, length)
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise FileError("its card is damaged; save the weights again") from error
