"""Where images come from: folders, tar files, shards, the Hugging Face hub."""

from abc import ABC, abstractmethod

from sightline.data.images import Source


class Reader(ABC):
    """Labeled images by index.

    Attributes:
        classes: names, in the order of the labels.
        targets: the label of every image.
        notes: what a user should know about them, one line each.
    """

    classes: tuple[str, ...]
    targets: list[int]
    notes: tuple[str, ...] = ()

    @abstractmethod
    def source(self, index: int) -> Source:
        """The undecoded image."""

    @abstractmethod
    def name(self, index: int) -> str:
        """The name of its file, for messages."""
