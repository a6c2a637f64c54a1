"""Image, and pictures in general, as sequences of gray pixels: CIFAR-10 as published in binary, or folders."""

from pathlib import Path

import numpy as np

from sightline.data.images import EXTENSIONS, load_image
from sightline.tasks.sequences.tokens import TokenSet
from sightline.util.errors import FileError

SIDE = 32
RECORD = 1 + 3 * SIDE * SIDE  # a label and three planes
GREY = np.array([0.2989, 0.5870, 0.1140])  # of red, green and blue
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FILES = {"train": tuple(f"data_batch_{i}.bin" for i in range(1, 6)), "test": ("test_batch.bin",)}


def read_cifar(folder: Path, split: str) -> TokenSet:
    """The training or test images of CIFAR-10's binary version.

    Args:
        split: "train" or "test".
    """
    pictures, labels = [], []
    for name in FILES[split]:
        path = folder / name
        if not path.is_file():
            raise FileError(f"{folder}: {name} is not there; give the folder of CIFAR-10's binary version")
        data = np.fromfile(path, dtype=np.uint8)
        if not len(data) or len(data) % RECORD:
            raise FileError(f"{path}: {len(data):,} bytes are not records of {RECORD}; download it again")
        records = data.reshape(-1, RECORD)
        if (wrong := int(records[:, 0].max())) > 9:
            raise FileError(f"{path}: label {wrong} is not one of 0 to 9; download it again")
        planes = records[:, 1:].reshape(-1, 3, SIDE * SIDE)
        pictures.append(np.rint(np.einsum("ncp,c->np", planes, GREY)).astype(np.uint8))
        labels.append(records[:, 0].astype(np.int64))
    values = np.concatenate(pictures)
    ends = np.arange(len(values) + 1, dtype=np.int64) * SIDE * SIDE
    return TokenSet(values.reshape(-1), ends, np.concatenate(labels))


def read_folder(folder: Path, classes: tuple[str, ...] | None = None) -> tuple[TokenSet, tuple[str, ...]]:
    """Images of 32 x 32 in a folder for every class, and the names of the classes."""
    found = tuple(sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")))
    classes = classes or found
    if not found or not set(found) <= set(classes):
        raise FileError(
            f"{folder}: classes {', '.join(found) or 'missing'}; expected {', '.join(classes) or 'folders'}"
        )
    pictures, labels = [], []
    for name in found:
        for path in sorted((folder / name).iterdir()):
            if path.suffix.lower() in EXTENSIONS:
                pictures.append(grey(path, SIDE).tobytes())
                labels.append(classes.index(name))
    if not pictures:
        raise FileError(f"{folder}: no images in the folders of its classes")
    return TokenSet.pack(pictures, labels, SIDE * SIDE), classes


def grey(path: Path, side: int) -> np.ndarray:
    """The gray pixels of an image file of side x side, (side * side,) uint8."""
    image = load_image(path)
    if image.size != (side, side):
        raise FileError(f"{path}: {image.size[0]}x{image.size[1]} pixels; this task takes {side}x{side}")
    return np.rint(np.asarray(image) @ GREY).astype(np.uint8).ravel()
