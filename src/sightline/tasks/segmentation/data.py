"""Images and index masks in folders: ADE20K as released, or any folders with a file of classes.

| layout | |
|---|---|
| `images/training`, `annotations/training`, ... | ADE20K: 150 classes from 1 on, 0 is ignored |
| `images/train`, `masks/train`, ... and `classes.json` or `classes.txt` | `masks` may be called annotations or labels |
| `train/images`, `train/masks`, ... and the same file | |
"""

import json
from dataclasses import dataclass
from pathlib import Path
from types import NoneType

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from sightline.data.images import EXTENSIONS, ImageError, open_image
from sightline.data.loader import SKIP
from sightline.tasks.dense.data import AnnotationError, LeftOut, find_split, load_annotated
from sightline.tasks.segmentation.config import Data
from sightline.util.documents import read_text
from sightline.util.errors import FileError

SPLITS = {"train": ("train", "training"), "val": ("val", "validation", "valid", "test")}
IMAGES, MASKS = ("images", "imgs"), ("masks", "annotations", "labels", "labelTrainIds")
MASK_EXTENSIONS = (".png", ".tif", ".tiff", ".bmp", ".gif")
LOSSY = (".jpg", ".jpeg")
MASK_MODES = ("1", "L", "P", "I", "I;16", "I;16B")  # of Pillow, with one number per pixel
IGNORE = -1  # of ignored pixels, in masks as they are trained on
ADE_CLASSES, ADE_NAMES, ADE_FOLDER = 150, "objectInfo150.txt", "ADEChallengeData2016"


@dataclass(frozen=True)
class Labels:
    """What the values of masks mean.

    Args:
        classes: names in the order of the model's outputs.
        ignore: value of ignored pixels.
        first: value of the first class; values below it are ignored too.
    """

    classes: tuple[str, ...]
    ignore: int
    first: int

    def read(self, path: Path) -> Tensor:
        """A mask as (H, W) int16, with classes from 0 on and IGNORE.

        Raises:
            AnnotationError: it cannot be read, holds no class numbers, or an unknown one.
        """
        try:
            with open_image(path) as image:
                mode, values = image.mode, np.asarray(image)
        except ImageError as error:
            raise AnnotationError(str(error)) from error
        if mode not in MASK_MODES:
            raise AnnotationError(f"{path}: an image of mode {mode}; masks hold one class number per pixel")
        mask = values.astype(np.int32) - self.first
        mask[(values == self.ignore) | (mask < 0)] = IGNORE
        if (unknown := mask[mask >= len(self.classes)]).size:
            raise AnnotationError(
                f"{path}: class {unknown[0] + self.first}, but there are {len(self.classes)} classes from {self.first} "
                f"on and {self.ignore} is ignored; fix the classes file or the mask, or give data.ignore"
            )
        return torch.from_numpy(mask.astype(np.int16))


@dataclass(frozen=True)
class Split:
    """Images with their masks."""

    title: str
    files: list[tuple[Path, Path]]
    labels: Labels
    notes: tuple[str, ...] = ()

    @property
    def classes(self) -> tuple[str, ...]:
        return self.labels.classes

    def __len__(self) -> int:
        return len(self.files)

    def read(self, index: int) -> tuple[Image.Image, Tensor]:
        """An RGB image and its mask (H, W).

        Raises:
            ImageError: one of them cannot be used, or they differ in size.
        """
        image, path = self.files[index]
        mask = self.labels.read(path)
        height, width = mask.shape
        return load_annotated(image, height, width, path), mask

    read_eval = read


def open_split(data: Data, which: str, labels: Labels | None = None, skip: str = SKIP) -> Split:
    """The training or evaluation split of a folder.

    Args:
        data: where, and what to do with images or masks without a partner.
        which: "train" or "val".
        labels: of the training split, which this one shares.
        skip: the option that skips them, for messages.

    Raises:
        FileError: the folder cannot be read, or a file has no partner.
    """
    root, images, masks = find_split(data, which, SPLITS[which], _folders, f"{IMAGES[0]}/*")
    pictures, annotations, lossy = (
        _files(folder, ends) for folder, ends in ((images, EXTENSIONS), (masks, MASK_EXTENSIONS), (masks, LOSSY))
    )
    alone = LeftOut(images, data.on_error, skip)
    for key in sorted(pictures.keys() ^ annotations.keys()):
        path, other = (pictures[key], masks) if key in pictures else (annotations[key], images)
        if key in lossy:
            alone.reject("with a mask as JPEG", f"{lossy[key]}: JPEG changes the numbers of a mask; save it as PNG")
        else:
            alone.reject("without a partner", f"{path}: it has no partner in {other}")
    files = [(path, annotations[key]) for key, path in pictures.items() if key in annotations]
    if not files:
        raise FileError(f"{images}: no images with masks in {masks}")
    return Split(str(images), files[: data.limit], labels or read_labels(root, data, masks), alone.notes)


def _folders(root: Path, name: str) -> tuple[Path, Path, Path] | None:
    """The root of the data, and where the images and the masks of a split are."""
    root = root / ADE_FOLDER if (root / ADE_FOLDER).is_dir() else root
    for kind in IMAGES:
        for place in ("{kind}/{name}", "{name}/{kind}"):
            images = root / place.format(kind=kind, name=name)
            nearby = [root / place.format(kind=mask, name=name) for mask in MASKS]
            if images.is_dir():
                if not any(folder.is_dir() for folder in nearby):
                    raise FileError(f"{images}: no masks next to it; expected them in {nearby[0]}")
                return root, images, next(folder for folder in nearby if folder.is_dir())
    return None


def _files(folder: Path, extensions: tuple[str, ...]) -> dict[str, Path]:
    """Files in a folder by their path without extension, sorted."""
    found: dict[str, Path] = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() not in extensions or path.name.startswith(".") or path.is_dir():
            continue
        name = str(path.relative_to(folder).with_suffix(""))
        if name in found:
            raise FileError(f"{path}: {found[name].name} has the same name with another extension; remove one of them")
        found[name] = path
    return found


def read_labels(root: Path, data: Data, masks: Path) -> Labels:
    """What mask values mean: from a classes file, or ADE20K's order."""
    usual = (path for path in (root / "classes.json", root / "classes.txt") if path.is_file())
    path = Path(data.classes) if data.classes else next(usual, None)
    ade = path is None and (masks.name in ("training", "validation") or (root / ADE_NAMES).is_file())
    if path is None and not ade:
        raise FileError(
            f"{root}: no classes.json or classes.txt; write the names of the classes into one, in the order of the "
            f"mask values, or give data.classes"
        )
    names, ignore = (_ade_names(root), 255) if path is None else _read_classes(path)
    first = ade if data.zero == "auto" else data.zero == "ignore"
    return Labels(tuple(names), ignore if data.ignore is None else data.ignore, int(first))


def _ade_names(root: Path) -> list[str]:
    path = root / ADE_NAMES
    if not path.is_file():
        return [f"class {i + 1}" for i in range(ADE_CLASSES)]
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8", errors="replace").splitlines()[1:]]
    names = [row[-1].split(",")[0].strip() for row in rows if row[-1].strip()]
    if len(names) != ADE_CLASSES:
        raise FileError(f"{path}: {len(names)} classes instead of {ADE_CLASSES}; unpack the data again")
    return names


def _read_classes(path: Path) -> tuple[list[str], int]:
    """Names from a list, or from a mapping of the numbers 0, 1, 2, ..., and the value of ignored pixels."""
    try:
        text = read_text(path)
        given = json.loads(text) if path.suffix == ".json" else text.rstrip().splitlines()
    except (OSError, ValueError, RecursionError) as error:
        raise FileError(f"{path}: cannot be read as classes ({' '.join(str(error).split())[:120]})") from error
    ignore = given.pop("ignore_index", None) if isinstance(given, dict) else None
    given = given.get("classes", given) if isinstance(given, dict) else given
    if isinstance(given, dict):
        given = [given.get(str(i)) for i in range(len(given))]
    names = [name.strip() for name in given if isinstance(name, str)] if isinstance(given, list) else []
    if not names or not all(names) or len(names) != len(given) or type(ignore) not in (int, NoneType):
        raise FileError(
            f'{path}: no classes; write {{"classes": ["road", ...], "ignore_index": 255}} or one name per line'
        )
    return names, 255 if ignore is None else ignore
