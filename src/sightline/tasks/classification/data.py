"""The splits that the section `data` of a classification run, or a path on the command line, names."""

from dataclasses import replace
from pathlib import Path

from sightline.data import splits
from sightline.data.splits import SPLITS, Split
from sightline.tasks.classification.config import Data
from sightline.util.errors import InputError


def open_split(data: Data, which: str, classes: tuple[str, ...] | None = None) -> Split:
    """The split `which`, "train" or "val"; labels follow `classes` if given, else the names found.

    Raises:
        FileError: there is no such split, it is empty, or its classes do not fit.
    """
    return splits.open_split(
        data.path, which, classes, source=data.source, split=data.train_split if which == "train" else data.val_split,
        class_map=data.class_map, image_key=data.image_key, label_key=data.label_key, limit=data.limit,
    )  # fmt: skip


def data_section(given: str | None, known: Data | None, split: str | None = None) -> Data:
    """Where the images to evaluate are: as given, else as in the configuration of the run."""
    if given is None:
        if known is None:
            raise InputError("data: name the images to evaluate; only a run folder records its own")
        return replace(known, val_split=split or known.val_split)
    if not given.strip():
        raise InputError("data: the path is empty; give a folder, a tar file or hfds/NAME")
    path, columns = Path(given), known or Data()
    data = Data(image_key=columns.image_key, label_key=columns.label_key)
    if split is None and path.is_dir() and _is_split(path):
        return replace(data, path=str(path.resolve().parent), val_split=path.resolve().name)
    return replace(data, path=given, val_split=split)


def _is_split(path: Path) -> bool:
    """Whether a folder holds classes instead of splits."""
    names = [name for which in SPLITS.values() for name in which]
    inside = [item.name for item in path.iterdir()]
    return any((path / name).is_dir() for name in inside) and not any(
        item == name or (item.endswith(".tar") and name in item) for item in inside for name in names
    )


def images(data: str | None, section: Data | None) -> Split:
    """All labeled images of the evaluation split, for studies; "embedded" is the embedded test set."""
    chosen = Data() if data == "embedded" else data_section(data, section)
    return open_split(replace(chosen, limit=None), "val")
