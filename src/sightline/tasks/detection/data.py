"""COCO instances: a JSON file of boxes, polygons and run-length masks next to a folder of images.

`annotations/instances_NAME.json` belongs to the images in `NAME`, `images/NAME` or the root; NAME is train2017, train,
val2017, val or test.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from sightline.data.loader import SKIP
from sightline.tasks.dense.loading import AnnotationError, load_annotated
from sightline.tasks.detection.coco import UNREADABLE, Json, check_mask, decode, is_number, is_whole, load, reason
from sightline.tasks.detection.config import Data
from sightline.util.errors import FileError, InputError

SPLITS = {
    "train": ("train2017", "train"),
    "val": ("val2017", "val", "valid", "validation", "test"),
}
Target = dict[str, Tensor]
LEAST = 0.01  # pixels; a box with a shorter side may vanish when it is resized


@dataclass(frozen=True)
class Entry:
    """An image of a split and its usable annotations as in the file, including crowds."""

    number: int
    path: Path
    height: int
    width: int
    objects: list[Json] = field(default_factory=list)


@dataclass(frozen=True)
class Split:
    """Images with their objects.

    Args:
        title: the JSON file.
        entries: the images.
        classes: names, in the order of the model's outputs.
        categories: the id of every class in the file.
        notes: what was left out, one line each.
    """

    title: str
    entries: list[Entry]
    classes: tuple[str, ...]
    categories: tuple[int, ...]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.entries)

    def image(self, index: int) -> Image.Image:
        """An RGB image.

        Raises:
            ImageError: it cannot be read, or has another size than the file says.
        """
        entry = self.entries[index]
        image = load_annotated(entry.path, entry.height, entry.width)
        if (image.height, image.width) != (entry.height, entry.width):
            raise AnnotationError(
                f"{entry.path}: {image.height}x{image.width} pixels, but {self.title} has {entry.height}x{entry.width}"
            )
        return image

    def target(self, index: int, masks: bool) -> Target:
        """Boxes (N, 4) as left, top, right, bottom, labels (N,) from 1 on, and masks (N, H, W); without crowds."""
        entry = self.entries[index]
        objects = [item for item in entry.objects if not item.get("iscrowd", 0)]
        boxes = torch.tensor([corners(item["bbox"]) for item in objects], dtype=torch.float32).reshape(-1, 4)
        labels = torch.tensor([self.categories.index(item["category_id"]) + 1 for item in objects], dtype=torch.long)
        target = {"boxes": clipped(boxes, entry.height, entry.width), "labels": labels}
        if masks:
            decoded = [self._mask(item, entry) for item in objects]
            target["masks"] = torch.from_numpy(
                np.stack(decoded) if decoded else np.zeros((0, entry.height, entry.width), np.uint8)
            )
        return target

    def _mask(self, item: Json, entry: Entry) -> np.ndarray:
        try:
            return decode(item.get("segmentation"), entry.height, entry.width)
        except UNREADABLE as error:
            name = f"{self.title}: annotation {item.get('id')} of {entry.path.name}"
            raise AnnotationError(f"{name} has no mask that can be read ({reason(error)})") from error

    def ground_truth(self, masks: bool = True, indices: Iterable[int] | None = None) -> Json:
        """What detections are compared with, as COCO instances, for all images or the `indices` of some."""
        entries = self.entries if indices is None else [self.entries[i] for i in sorted(set(indices))]
        images = [{"id": e.number, "height": e.height, "width": e.width} for e in entries]
        objects = [_complete(item, entry, masks) for entry in entries for item in entry.objects]
        categories = [{"id": n, "name": c} for n, c in zip(self.categories, self.classes, strict=True)]
        numbered = [{**item, "id": number} for number, item in enumerate(objects, 1)]
        return {"images": images, "annotations": numbered, "categories": categories, "info": {}}


def _complete(item: Json, entry: Entry, masks: bool) -> Json:
    """An annotation with the fields that evaluation needs."""
    box = [float(value) for value in item["bbox"]]
    area = item["area"] if is_number(item.get("area")) else box[2] * box[3]
    return {
        "image_id": entry.number, "category_id": item["category_id"], "bbox": box, "area": float(area),
        "iscrowd": int(item.get("iscrowd", 0)), "segmentation": (masks and item.get("segmentation")) or [],
    }  # fmt: skip


def corners(box: Sequence[float]) -> list[float]:
    """COCO's left, top, width, height -> left, top, right, bottom."""
    left, top, width, height = (float(value) for value in box)
    return [left, top, left + width, top + height]


def clipped(boxes: Tensor, height: int, width: int) -> Tensor:
    """Boxes (N, 4) inside an image."""
    boxes[:, 0::2] = boxes[:, 0::2].clamp(0, width)
    boxes[:, 1::2] = boxes[:, 1::2].clamp(0, height)
    return boxes


def open_split(data: Data, which: str, train: Split | None = None, masks: bool = False, skip: str = SKIP) -> Split:
    """The training or evaluation split of a COCO folder.

    Args:
        data: where, and what to do with annotations that cannot be used.
        which: "train" or "val".
        train: the training split, whose classes this one must share.
        masks: whether every object must have one.
        skip: the option that skips them, for messages.

    Raises:
        FileError: it cannot be read, or something in it cannot be used.
    """
    try:
        import faster_coco_eval  # noqa: F401
    except ImportError as error:
        raise InputError("detection needs faster-coco-eval: pip install faster-coco-eval") from error
    if data.path is None or not data.path.strip():
        raise InputError("data.path: give the folder of the images with --data FOLDER")
    root = Path(data.path)
    if not root.is_dir():
        raise InputError(f"data.path: no folder {root}; give the one that has annotations/")
    given = data.train_split if which == "train" else data.val_split
    path, folder = _find(root, (given,) if given else SPLITS[which], which)
    split = _Reading(path, folder, data, masks, skip).split(which == "train")
    if train is not None and train.classes != split.classes:
        raise FileError(f"{path}: other classes than {train.title}; give both the same categories")
    return split


def _find(root: Path, names: Sequence[str], which: str) -> tuple[Path, Path]:
    """The JSON file of a split, and the folder of its images."""
    for name in names:
        path = root / "annotations" / f"instances_{name}.json"
        if path.is_file():
            folders = (root / name, root / "images" / name, root / "images", root)
            return path, next(folder for folder in folders if folder.is_dir())
    there = sorted(path.stem.removeprefix("instances_") for path in root.glob("annotations/instances_*.json"))
    has = f"; there are {', '.join(there)}" if there else ""
    what = which if len(names) > 1 else repr(names[0])
    raise FileError(f"{root}: no {what} split; expected {root / 'annotations' / f'instances_{names[0]}.json'}{has}")


class _Reading:
    """Turns a JSON file into a split and counts what was left out and why."""

    def __init__(self, path: Path, folder: Path, data: Data, masks: bool, skip: str) -> None:
        self.path, self.folder, self.data, self.masks, self.skip = path, folder, data, masks, skip
        self.out: dict[str, list[str]] = {}
        self.decoded = False

    def split(self, training: bool) -> Split:
        content = load(self.path)
        self.decoded = self.masks and not training  # those of training are decoded when they are needed
        categories = sorted(content["categories"], key=lambda item: item["id"])
        numbers = tuple(item["id"] for item in categories)
        entries = {}
        for image in content["images"]:
            entry = Entry(image["id"], self.folder / image["file_name"], image["height"], image["width"])
            if os.path.isfile(entry.path):  # unlike Path's, false for a name that is too long
                entries[entry.number] = entry
            else:
                self._reject(
                    "without their file",
                    f"{entry.path}: no such image file, but {self.path} lists it",
                )
        known = {image["id"] for image in content["images"]}
        for item in content["annotations"]:
            self._take(item, entries, known, set(numbers))
        chosen = list(entries.values())
        if training and self.data.empty == "drop":
            chosen = self._with_objects(chosen)
        if not entries:
            raise FileError(f"{self.path}: none of its images is in {self.folder}")
        if not chosen:
            raise FileError(f"{self.path}: no images with objects in it")
        names = tuple(str(item["name"]) for item in categories)
        return Split(str(self.path), chosen[: self.data.limit], names, numbers, self._notes())

    def _with_objects(self, entries: Sequence[Entry]) -> list[Entry]:
        """Those with an object that is not a crowd; the others are counted."""
        usable: list[Entry] = []
        empty: list[str] = []
        for entry in entries:
            if any(not item.get("iscrowd", 0) for item in entry.objects):
                usable.append(entry)
            else:
                empty.append(entry.path.name)
        if empty:
            self.out["images without objects"] = empty
        return usable

    def _take(self, item: Json, entries: Mapping[int, Entry], known: set[int], numbers: set[int]) -> None:
        """Keep an annotation with its image, or count it."""
        name = f"{self.path}: annotation {item.get('id')}"
        image, category = item.get("image_id"), item.get("category_id")
        if not is_whole(image) or image not in known:
            return self._reject("of no image", f"{name} is of image {image}, which has no entry")
        entry = entries.get(image)
        if entry is None:
            return None
        if not is_whole(category) or category not in numbers:
            return self._reject("of an unknown class", f"{name} is of class {category}, which is unknown")
        box = item.get("bbox")
        if not isinstance(box, list) or len(box) != 4 or not all(is_number(value) for value in box):
            return self._reject("without a box", f"{name} has the box {box!r}, not left, top, width, height")
        if item.get("iscrowd", 0) not in (0, 1):
            return self._reject("with a wrong iscrowd", f"{name} has iscrowd {item['iscrowd']!r}, not 0 or 1")
        left, top, right, bottom = corners(box)
        if min(right, entry.width) - max(left, 0) < LEAST or min(bottom, entry.height) - max(top, 0) < LEAST:
            self.out.setdefault("boxes without width or height", []).append(
                f"annotation {item.get('id')} of {entry.path.name}, {box}"
            )
            return None
        if self.masks and not item.get("segmentation") and not item.get("iscrowd", 0):
            boxes = "boxes alone are trained with --model.head retinanet or faster_rcnn"
            return self._reject("without a mask", f"{name} has no mask ({boxes})")
        if self.decoded and item.get("segmentation"):
            try:
                check_mask(item["segmentation"], entry.height, entry.width)
            except UNREADABLE as error:
                return self._reject("without a mask to read", f"{name} has no mask that can be read ({reason(error)})")
        entry.objects.append(item)
        return None

    def _reject(self, what: str, message: str) -> None:
        if self.data.on_error == "stop":
            raise FileError(f"{message}; fix the file, or pass {self.skip}")
        self.out.setdefault(what, []).append(message)

    def _notes(self) -> tuple[str, ...]:
        return tuple(
            f"{self.path}: {len(found):,} left out: {what}, such as {found[0]}" for what, found in self.out.items()
        )
