"""Images and index masks in folders: ADE20K as released, or any folders with a file of classes.

| layout | |
|---|---|
| `images/training`, `annotations/training`, ... | ADE20K: 150 classes from 1 on, 0 is ignored |
| `images/train`, `masks/train`, ... and `classes.json` or `classes.txt` | `masks` may be called annotations or labels |
| `train/images`, `train/masks`, ... and the same file | |
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from sightline.data.images import EXTENSIONS
from sightline.data.loader import SKIP
from sightline.tasks.dense.loading import AnnotationError, load_annotated
from sightline.tasks.segmentation.config import Data
from sightline.util.errors import FileError, InputError

SPLITS = {"train": ("train", "training"), "val": ("val", "validation", "valid", "test")}
IMAGES, MASKS = ("images", "imgs"), ("masks", "annotations", "labels", "labelTrainIds")
MASK_EXTENSIONS = (".png", ".tif", ".tiff", ".bmp", ".gif")
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
    ignore: int = 255
    first: int = 0

    def read(self, path: Path) -> np.ndarray:
        """A mask as (H, W) int16, with classes from 0 on and IGNORE.

        Raises:
            AnnotationError: there is no such file, it holds no class numbers, or an unknown one.
        """
        try:
            with Image.open(path) as image:
                if image.mode not in ("1", "L", "P", "I", "I;16", "I;16B"):
                    raise AnnotationError(
                        f"{path}: an image of mode {image.mode}; masks hold one class number per pixel"
                    )
                values = np.asarray(image).astype(np.int64)
        except FileNotFoundError as error:
            raise AnnotationError(f"{path}: no such mask") from error
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            if isinstance(error, AnnotationError):
                raise
            raise AnnotationError(f"{path}: cannot be read as a mask ({' '.join(str(error).split())[:120]})") from error
        known = (values == self.ignore) | (values < self.first) | (values - self.first < len(self.classes))
        if not known.all():
            unknown = int(values[~known][0])
            raise AnnotationError(
                f"{path}: class {unknown}, but there are {len(self.classes)} classes from {self.first} on and "
                f"{self.ignore} is ignored; fix the classes file or the mask, or give data.ignore"
            )
        mask = values - self.first
        mask[(values == self.ignore) | (values < self.first)] = IGNORE
        return mask.astype(np.int16)


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

    def read(self, index: int) -> tuple[Image.Image, np.ndarray]:
        """An RGB image and its mask.

        Raises:
            ImageError: one of them cannot be used, or they differ in size.
        """
        image_path, mask_path = self.files[index]
        mask = self.labels.read(mask_path)
        image = load_annotated(image_path, *mask.shape)
        if (image.height, image.width) != mask.shape:
            raise AnnotationError(
                f"{mask_path}: a mask of {mask.shape[0]}x{mask.shape[1]} for an image of {image.height}x{image.width}"
            )
        return image, mask


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
    root = _root(data.path)
    given = data.train_split if which == "train" else data.val_split
    images, masks = _folders(root, (given,) if given else SPLITS[which], which)
    labels = labels or read_labels(root, data, masks)
    pairs, alone = _pairs(images, masks)
    if alone and data.on_error == "stop":
        raise FileError(f"{alone[0]}; add or remove it, or pass {skip}")
    notes = (f"{images}: {len(alone):,} skipped, such as {alone[0]}",) if alone else ()
    if not pairs:
        raise FileError(f"{images}: no images with masks in {masks}")
    return Split(str(images), pairs[: data.limit], labels, notes)


def _root(path: str | None) -> Path:
    if path is None or not path.strip():
        raise InputError("data.path: give the folder of the images with --data FOLDER")
    root = Path(path)
    if not root.is_dir():
        raise InputError(f"data.path: no folder {root}; give the one that has images/ and masks/")
    inside = root / ADE_FOLDER
    return inside if inside.is_dir() else root


def _folders(root: Path, names: Sequence[str], which: str) -> tuple[Path, Path]:
    """Where the images and the masks of a split are."""
    for name in names:
        for kind in IMAGES:
            for images in (root / kind / name, root / name / kind):
                if not images.is_dir():
                    continue
                nearby = [root / m / name if images.parent.name == kind else root / name / m for m in MASKS]
                found = next((folder for folder in nearby if folder.is_dir()), None)
                if found is None:
                    raise FileError(f"{images}: no masks next to it; expected them in {nearby[0]}")
                return images, found
    there = sorted({path.name for kind in IMAGES for path in (root / kind).glob("*") if path.is_dir()})
    has = f"; there are {', '.join(there)}" if there else ""
    what = which if len(names) > 1 else repr(names[0])
    raise FileError(
        f"{root}: no {what} split; expected {root / IMAGES[0] / names[0]} and {root / MASKS[0] / names[0]}{has}"
    )


def _pairs(images: Path, masks: Path) -> tuple[list[tuple[Path, Path]], list[str]]:
    """Images with their masks by name, and messages about files without a partner."""
    pictures, labels = _files(images, EXTENSIONS), _files(masks, MASK_EXTENSIONS)
    alone = [f"{path}: an image without a mask in {masks}" for key, path in pictures.items() if key not in labels]
    alone += [f"{path}: a mask without an image in {images}" for key, path in labels.items() if key not in pictures]
    return [(path, labels[key]) for key, path in pictures.items() if key in labels], alone


def _files(folder: Path, extensions: Sequence[str]) -> dict[str, Path]:
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
    path = Path(data.classes) if data.classes else next(
        (p for p in (root / "classes.json", root / "classes.txt") if p.is_file()), None
    )  # fmt: skip
    ade = path is None and (masks.name in ("training", "validation") or (root / ADE_NAMES).is_file())
    if path is None and not ade:
        raise FileError(
            f"{root}: no classes.json or classes.txt; write the names of the classes into one, in the order of the "
            f"mask values, or give data.classes"
        )
    names, ignore = _ade_names(root) if path is None else _read_classes(path)
    zero = data.zero if data.zero != "auto" else ("ignore" if ade else "class")
    ignore = data.ignore if data.ignore is not None else ignore
    return Labels(tuple(names), 255 if ignore is None else ignore, int(zero == "ignore"))


def _ade_names(root: Path) -> tuple[list[str], int | None]:
    path = root / ADE_NAMES
    if not path.is_file():
        return [f"class {i + 1}" for i in range(ADE_CLASSES)], None
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8", errors="replace").splitlines()[1:]]
    names = [row[-1].split(",")[0].strip() for row in rows if row[-1].strip()]
    if len(names) != ADE_CLASSES:
        raise FileError(f"{path}: {len(names)} classes instead of {ADE_CLASSES}; unpack the data again")
    return names, None


def _read_classes(path: Path) -> tuple[list[str], int | None]:
    """Names, and the ignored value if a JSON file gives one."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        loaded: object = json.loads(text) if path.suffix == ".json" else text.rstrip().splitlines()
    except (OSError, ValueError, RecursionError) as error:
        raise FileError(f"{path}: cannot be read as classes ({' '.join(str(error).split())[:120]})") from error
    given = loaded.get("classes", loaded) if isinstance(loaded, dict) else loaded
    ignore = loaded.get("ignore_index") if isinstance(loaded, dict) else None
    names = _in_order(given)
    if names is None or (ignore is not None and (not isinstance(ignore, int) or isinstance(ignore, bool))):
        raise FileError(
            f'{path}: no classes; write {{"classes": ["road", ...], "ignore_index": 255}} or one name per line'
        )
    return names, ignore


def _in_order(given: object) -> list[str] | None:
    """Names from a list, or from a mapping of the numbers 0, 1, 2, ...; None if a name is missing."""
    if isinstance(given, dict):
        numbered = {str(key): name for key, name in given.items() if key != "ignore_index"}
        given = [numbered.get(str(i)) for i in range(len(numbered))]
    if not isinstance(given, list) or not given:
        return None
    names = [name.strip() for name in given if isinstance(name, str) and name.strip()]
    return names if len(names) == len(given) else None
