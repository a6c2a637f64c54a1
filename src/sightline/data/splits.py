"""Labeled images, read one at a time."""

from collections import Counter
from collections.abc import Sequence

from PIL import Image

from sightline.data.images import ImageError, load_image
from sightline.data.readers import Reader
from sightline.util.files import reason

HF = "hfds/"  # before the name of a Hugging Face dataset


class Split:
    """The images of a reader, or some of them.

    Args:
        reader: has the images.
        title: what to call it in messages.
        indices: the images of the reader to use; by default all.

    Attributes:
        classes: names, in the order of the labels.
        targets: the label of every image.
        notes: what a user should know about it, one line each.
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
        return f"{self.title}/{self.reader.name(self.indices[index])}"

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
