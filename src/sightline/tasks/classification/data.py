"""The splits that the section `data` of a classification run names."""

from sightline.data import splits
from sightline.data.splits import Split
from sightline.tasks.classification.config import Data


def open_split(data: Data, which: str, classes: tuple[str, ...] | None = None) -> Split:
    """The split `which`, "train" or "val"; labels follow `classes` if given, else the names found.

    Raises:
        FileError: there is no such split, it is empty, or its classes do not fit.
    """
    return splits.open_split(
        data.path, which, classes, source=data.source, split=data.train_split if which == "train" else data.val_split,
        class_map=data.class_map, image_key=data.image_key, label_key=data.label_key, limit=data.limit,
    )  # fmt: skip
