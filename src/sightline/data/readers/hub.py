"""A Hugging Face dataset as a reader: the bytes of an image and its label, in any order."""

import io
from pathlib import Path
from typing import Any

import datasets
from timm.data.readers.reader import Reader


class HubReader(Reader):
    """A split of a dataset from the hub, or of a local folder that `datasets.load_dataset` understands.

    Args:
        name: as `load_dataset` takes it; remote code is never run.
        split: of the dataset.
        image_key, label_key: its columns; a missing one is a KeyError with the columns that there are.
    """

    def __init__(self, name: str, split: str, image_key: str = "image", label_key: str = "label") -> None:
        super().__init__()
        loaded: Any = datasets.load_dataset(name, split=split)
        for key in (image_key, label_key):
            if key not in loaded.features:
                raise KeyError(key, *loaded.features)
        self.rows = loaded.cast_column(image_key, datasets.Image(decode=False))
        self.image_key = image_key
        labels = self.rows[label_key]
        feature = loaded.features[label_key]
        names = getattr(feature, "names", None) or sorted({str(label) for label in labels})
        self.classes: tuple[str, ...] = tuple(str(name) for name in names)
        of = {name: i for i, name in enumerate(self.classes)}
        numbered = hasattr(feature, "names")
        self.targets = [int(label) if numbered else of[str(label)] for label in labels]

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[io.BytesIO, int]:
        image = self.rows[index][self.image_key]
        data = image.get("bytes") or Path(image["path"]).read_bytes()
        return io.BytesIO(data), self.targets[index]

    def _filename(self, index: int, basename: bool = False, absolute: bool = False) -> str:
        return str(self.rows[index][self.image_key].get("path") or index)
