"""Labeled images, read one at a time."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence

from PIL import Image

from sightline.data.images import ImageError, Source, load_image
from sightline.util.files import reason

HF = "hfds/"  # before the name of a Hugging Face dataset


class Reader(ABC):
    """Labeled images by index.

    Attributes:
        classes: names, in the order of the labels.
        targets: the label of every image.
        notes: what a user should know about them, one line each.
        whole_names: whether `name` is the whole path, which needs no folder in front.
    """

    classes: tuple[str, ...]
    targets: list[int]
    notes: tuple[str, ...] = ()
    whole_names = False

    @abstractmethod
    def source(self, index: int) -> Source:
        """The undecoded image."""

    @abstractmethod
    def name(self, index: int) -> str:
        """The name of its file, for messages."""


class Split:
    """The images of a reader, or some of them, with its classes, targets and notes.

    Args:
        reader: has the images.
        title: what to call it in messages.
        indices: the images of the reader to use; by default all.
    """

    def __init__(self, reader: Reader, title: str, indices: Sequence[int] | None = None) -> None:
        self.reader, self.title = reader, title
        self.classes, self.notes = reader.classes, reader.notes
        self.indices = range(len(reader.targets)) if indices is None else indices
        self.targets = [reader.targets[i] for i in self.indices]

    def __len__(self) -> int:
        return len(self.indices)

    def name(self, index: int) -> str:
        """The file name of an image, for messages."""
        name = self.reader.name(self.indices[index])
        return name if self.reader.whole_names else f"{self.title}/{name}"

    def image(self, index: int, channels: int = 3) -> Image.Image:
        """The decoded image; raises `ImageError` with its name."""
        try:
            source = self.reader.source(self.indices[index])
        except OSError as error:
            raise ImageError(f"{self.name(index)}: cannot be read ({reason(error)})") from error
        return load_image(source, self.name(index), channels)

    def subset(self, indices: Sequence[int]) -> "Split":
        """Some of the images."""
        return Split(self.reader, self.title, [self.indices[i] for i in indices])

    def first_of_each(self, limit: int | None) -> "Split":
        """The first `limit` images of every class; all for None."""
        if limit is None:
            return self
        seen: Counter[int] = Counter()
        kept = []
        for index, target in enumerate(self.targets):
            seen[target] += 1
            if seen[target] <= limit:
                kept.append(index)
        return self.subset(kept)
