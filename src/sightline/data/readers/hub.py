"""A Hugging Face dataset: the bytes of an image and its label, in any order."""

from pathlib import Path
from typing import Any

import datasets

from sightline.data.images import ImageError, Source
from sightline.data.splits import Reader
from sightline.util.errors import FileError, shown


class HubReader(Reader):
    """A split of a dataset from the hub, or of a local folder that `datasets.load_dataset` understands.

    Args:
        name: as `load_dataset` takes it; remote code is never run.
        split: of the dataset.
        classes: names in the order of the labels; by default those of the dataset.
        image_key, label_key: its columns.
    """

    def __init__(
        self, name: str, split: str, classes: tuple[str, ...] | None, image_key: str = "image", label_key: str = "label"
    ) -> None:
        loaded: Any = datasets.load_dataset(name, split=split)
        for key in (image_key, label_key):
            if key not in loaded.features:
                known = ", ".join(loaded.features)
                raise FileError(f"{name}: no column {key!r} among {known}; give data.image_key and data.label_key")
        self.rows = loaded.cast_column(image_key, datasets.Image(decode=False))
        self.image_key = image_key
        labels, names = loaded[label_key], getattr(loaded.features[label_key], "names", None)
        for row, label in enumerate(labels):
            if not isinstance(label, int | float | str):
                raise FileError(f"{name}: row {row} has the label {shown(label)}; give it a number or a name")
        if names is None:
            names = classes or sorted({str(label) for label in labels})
            numbers = {name: i for i, name in enumerate(names)}
            if unknown := {str(label) for label in labels} - numbers.keys():
                raise FileError(f"{name}: label {min(unknown)!r} is not one of the {len(numbers)} classes")
            labels = [numbers[str(label)] for label in labels]
        self.classes = classes or tuple(map(str, names))
        self.targets = [int(label) for label in labels]

    def source(self, index: int) -> Source:
        image = self.rows[index][self.image_key] or {}
        if not image.get("bytes") and not image.get("path"):
            raise ImageError(f"{self.name(index)}: there is no image in this row")
        return image.get("bytes") or Path(image["path"])

    def name(self, index: int) -> str:
        return str((self.rows[index][self.image_key] or {}).get("path") or index)
