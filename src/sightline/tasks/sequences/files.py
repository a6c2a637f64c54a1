"""The files of the Long Range Arena as published. A missing file is an OSError, which `data.open_splits` explains."""

import os
from codecs import BOM_UTF8
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from sightline.data.images import EXTENSIONS, load_image
from sightline.tasks.sequences.listops import SYMBOLS
from sightline.tasks.sequences.tokens import Note, TokenSet, quiet
from sightline.util.errors import FileError

SIDE = 32  # of the images
RECORD = 1 + 3 * SIDE * SIDE  # a label and three planes
GRAY = np.array([0.2989, 0.5870, 0.1140])  # of red, green and blue
REVIEWS = ("neg", "pos")
CIFAR = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR_FILES = {"train": tuple(f"data_batch_{i}.bin" for i in range(1, 6)), "test": ("test_batch.bin",)}


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """The lines that are not blank, one character per byte, each after its file and number."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            line = line.removeprefix(BOM_UTF8) if number == 1 else line
            if line.strip(b" \r\n"):
                yield f"{path}, line {number}", line.rstrip(b"\r\n").decode("latin-1")


def read_listops(path: Path, length: int) -> TokenSet:
    """A file such as basic_train.tsv: Source and Target, with or without round brackets."""
    numbers = {symbol: i for i, symbol in enumerate(SYMBOLS)}
    sequences, labels = [], []
    lines = _lines(path)
    if next(lines, ("", ""))[1] != "Source\tTarget":
        raise FileError(f"{path}: the first line is not 'Source<TAB>Target'; give the files as published")
    for place, line in lines:
        source, _, target = line.partition("\t")
        if numbers.get(target, 10) > 9:
            raise FileError(f"{place}: the label {target!r} is not a digit")
        words = [word for word in source.split() if word not in "()"]
        if unknown := set(words) - numbers.keys():
            raise FileError(f"{place}: {min(unknown)!r} is not a token of ListOps")
        sequences.append(bytes(numbers[word] for word in words))
        labels.append(numbers[target])
    return TokenSet.pack(sequences, labels, length)


def read_imdb(folder: Path, length: int) -> TokenSet:
    """The reviews in the folders neg and pos, one per file."""
    sequences, labels = [], []
    for label, name in enumerate(REVIEWS):
        for path in sorted((folder / name).iterdir()):
            if path.suffix == ".txt":
                with path.open("rb") as file:
                    sequences.append(file.read(length + 1))  # one more, so that a longer one is known to be cut
                labels.append(label)
    return TokenSet.pack(sequences, labels, length)


def read_pairs(path: Path, length: int) -> TokenSet:
    """A file such as new_aan_pairs.train.tsv: label, two names and two texts per line, separated by tabs."""
    sequences, labels = [], []
    for place, line in _lines(path):
        label, *fields = line.split("\t")
        if len(fields) != 4:
            raise FileError(f"{place}: {len(fields) + 1} fields; expected label, two names, two texts")
        if label not in ("0", "1", "0.0", "1.0"):
            raise FileError(f"{place}: the label {label[:20]!r} is neither 0 nor 1")
        sequences += [text[: length + 1].encode("latin-1") for text in fields[2:]]
        labels.append(int(label[0]))
    return TokenSet.pack(sequences, labels, length, towers=2)


def read_cifar(folder: Path, split: str) -> TokenSet:
    """The images of CIFAR-10's binary version in gray; `split` is "train" or "test"."""
    pictures: list[bytes] = []
    labels: list[int] = []
    for path in (folder / name for name in CIFAR_FILES[split]):
        data = np.fromfile(path, dtype=np.uint8)
        if not len(data) or len(data) % RECORD:
            raise FileError(f"{path}: {len(data):,} bytes are not records of {RECORD}; download it again")
        records = data.reshape(-1, RECORD)
        if (wrong := int(records[:, 0].max())) >= len(CIFAR):
            raise FileError(f"{path}: label {wrong} is not one of 0 to 9; download it again")
        planes = records[:, 1:].reshape(-1, 3, SIDE * SIDE)
        pictures += map(bytes, np.rint(np.einsum("ncp,c->np", planes, GRAY)).astype(np.uint8))
        labels += records[:, 0].tolist()
    return TokenSet.pack(pictures, labels, SIDE * SIDE)


def read_folder(folder: Path) -> TokenSet:
    """Images of 32 x 32 in a folder for every class of CIFAR-10, or some of them."""
    found = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if unknown := [name for name in found if name not in CIFAR]:
        raise FileError(f"{folder}: no class {unknown[0]!r}; expected folders {', '.join(CIFAR)}")
    paths = [path for name in found for path in sorted((folder / name).iterdir()) if path.suffix.lower() in EXTENSIONS]
    labels = [CIFAR.index(path.parent.name) for path in paths]
    return TokenSet.pack(map(_gray_pixels, paths), labels, SIDE * SIDE)


def read_pathfinder(folder: Path, note: Note = quiet) -> tuple[TokenSet, int]:
    """The images of a folder such as pathfinder32/curv_contour_length_14, and how many were empty.

    `metadata/*.npy` are lines of text: folder, file, number, label, and more.
    """
    found = [path for path in (folder / "metadata").iterdir() if path.suffix == ".npy"]
    lists = sorted(found, key=lambda path: (len(path.stem), path.stem))
    pictures, labels, empty = [], [], 0
    for number, path in enumerate(lists, 1):
        for place, line in _lines(path):
            words = line.split()
            if len(words) < 4 or words[3] not in ("0", "1") or any(map(_leaves, words[:2])):
                raise FileError(f"{place}: {line[:60]!r} does not name an image and its label, 0 or 1")
            image = folder / words[0] / words[1]
            if os.path.isfile(image) and os.path.getsize(image) == 0:  # one was published so
                empty += 1
                continue
            try:
                pictures.append(_gray_pixels(image))
            except FileError as error:
                raise FileError(f"{place}: {error}") from error
            labels.append(int(words[3]))
        note("pathfinder, parts read", number, len(lists))
    return TokenSet.pack(pictures, labels, SIDE * SIDE), empty


def _leaves(name: str) -> bool:
    """Whether a path may lead out of the folder that it is joined to."""
    return Path(name).is_absolute() or ".." in Path(name).parts


def _gray_pixels(path: Path) -> bytes:
    """The pixels of an image file of 32 x 32."""
    image = load_image(path)
    if image.size != (SIDE, SIDE):
        raise FileError(f"{path}: {image.size[0]}x{image.size[1]} pixels; this task takes {SIDE}x{SIDE}")
    return np.rint(np.asarray(image) @ GRAY).astype(np.uint8).tobytes()
