"""COCO instances: a JSON file of boxes, polygons and run-length masks next to a folder of images.

`annotations/instances_NAME.json` belongs to the images in `NAME`, `images/NAME` or the root; NAME is train2017, train,
val2017, val or test.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from pydantic import ValidationError
from torch import Tensor
from torchvision.ops import box_convert, clip_boxes_to_image

from sightline.data.loader import SKIP
from sightline.tasks.dense.data import AnnotationError, LeftOut, find_split, load_annotated
from sightline.tasks.detection.coco import (
    ANNOTATION,
    UNREADABLE,
    Annotation,
    Content,
    Json,
    check_mask,
    decode,
    load,
    reason,
)
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
    annotations: list[Annotation] = field(default_factory=list)

    @property
    def objects(self) -> list[Annotation]:
        """Without crowds."""
        return [item for item in self.annotations if not item.iscrowd]


@dataclass(frozen=True)
class Split:
    """Images with their objects.

    Args:
        title: the JSON file.
        entries: the images.
        classes: names, in the order of the model's outputs.
        categories: the id of every class in the file.
        masks: whether objects have masks, or only boxes.
        notes: what was left out, one line each.
    """

    title: str
    entries: list[Entry]
    classes: tuple[str, ...]
    categories: tuple[int, ...]
    masks: bool
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.entries)

    def read(self, index: int) -> tuple[Image.Image, Target]:
        """An RGB image and its target."""
        return self.image(index), self.target(index)

    def read_eval(self, index: int) -> tuple[Image.Image, int]:
        """An RGB image and its index."""
        return self.image(index), index

    def image(self, index: int) -> Image.Image:
        """An RGB image.

        Raises:
            ImageError: it cannot be read, or has another size than the file says.
        """
        entry = self.entries[index]
        return load_annotated(entry.path, entry.height, entry.width, self.title)

    def target(self, index: int) -> Target:
        """Boxes (N, 4) as left, top, right, bottom, labels (N,) from 1 on, and masks (N, H, W); without crowds."""
        entry = self.entries[index]
        size, objects = (entry.height, entry.width), entry.objects
        boxes = torch.tensor([item.bbox for item in objects], dtype=torch.float64).reshape(-1, 4)
        target = {
            "boxes": clip_boxes_to_image(box_convert(boxes, "xywh", "xyxy"), size).float(),
            "labels": torch.tensor([self.categories.index(item.category_id) + 1 for item in objects], dtype=torch.long),
        }
        if self.masks:
            masks = np.zeros((len(objects), *size), np.uint8)
            for mask, item in zip(masks, objects, strict=True):
                try:
                    mask[:] = decode(item.segmentation, *size)
                except UNREADABLE as error:
                    name = f"{self.title}: annotation {item.id} of {entry.path.name}"
                    raise AnnotationError(f"{name} has no mask that can be read ({reason(error)})") from error
            target["masks"] = torch.from_numpy(masks)
        return target

    def ground_truth(self, indices: Iterable[int] | None = None) -> Json:
        """What detections are compared with, as COCO instances, for all images or the `indices` of some."""
        entries = self.entries if indices is None else [self.entries[i] for i in sorted(set(indices))]
        items = [item for entry in entries for item in entry.annotations]
        return {
            "images": [{"id": entry.number, "height": entry.height, "width": entry.width} for entry in entries],
            "annotations": [{**self._complete(item), "id": number} for number, item in enumerate(items, 1)],
            "categories": [{"id": n, "name": c} for n, c in zip(self.categories, self.classes, strict=True)],
            "info": {},
        }

    def _complete(self, item: Annotation) -> Json:
        """An annotation with the fields that evaluation needs; an area that is no number is that of the box."""
        known = isinstance(item.area, int | float) and abs(item.area) < 1e300
        return {
            "image_id": item.image_id, "category_id": item.category_id, "bbox": item.bbox, "iscrowd": item.iscrowd,
            "area": float(item.area) if known else item.bbox[2] * item.bbox[3],
            "segmentation": (self.masks and item.segmentation) or [],
        }  # fmt: skip


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
    path, folder = find_split(data, which, SPLITS[which], _place, "annotations/instances_*.json")
    content, left_out = load(path), LeftOut(path, data.on_error, skip)
    categories = sorted(content.categories, key=lambda item: item.id)
    numbers, classes = tuple(item.id for item in categories), tuple(item.name for item in categories)
    if train is not None and train.classes != classes:
        raise FileError(f"{path}: other classes than {train.title}; give both the same categories")
    entries = _entries(content, folder, left_out)
    _annotate(entries, content, set(numbers), left_out, masks, which)
    chosen = [entry for entry in entries.values() if entry is not None]
    if which == "train" and data.empty == "drop":
        for entry in chosen:
            if not entry.objects:
                left_out.count("images without objects", entry.path.name)
        chosen = [entry for entry in chosen if entry.objects]
    if not chosen:
        raise FileError(f"{path}: none of its images is in {folder} and has objects")
    return Split(str(path), chosen[: data.limit], classes, numbers, masks, left_out.notes)


def _place(root: Path, name: str) -> tuple[Path, Path] | None:
    """The JSON file of a split, and the folder of its images."""
    path = root / "annotations" / f"instances_{name}.json"
    folders = (root / name, root / "images" / name, root / "images", root)
    return (path, next(folder for folder in folders if folder.is_dir())) if path.is_file() else None


def _entries(content: Content, folder: Path, left_out: LeftOut) -> dict[int, Entry | None]:
    """The images of a file by their ids; None without the image file."""
    entries: dict[int, Entry | None] = {}
    for row in content.images:
        entry = Entry(row.id, folder / row.file_name, row.height, row.width)
        there = os.path.isfile(entry.path)  # unlike Path's, false for a name that is too long
        if not there:
            left_out.reject("without their file", f"{entry.path}: no such image file, but {left_out.source} lists it")
        entries[row.id] = entry if there else None
    return entries


def _annotate(
    entries: dict[int, Entry | None], content: Content, categories: set[int], left_out: LeftOut, masks: bool, which: str
) -> None:
    """Give the usable annotations of a file to their images."""
    for row in content.annotations:
        name = f"{left_out.source}: annotation {row.get('id')}"
        try:
            item = ANNOTATION.validate_python(row)
        except ValidationError as error:
            left_out.reject("with a wrong field", f"{name} has {reason(error)}")
            continue
        if item.image_id not in entries:
            left_out.reject("of no image", f"{name} is of image {item.image_id}, which has no entry")
        elif item.category_id not in categories:
            left_out.reject("of an unknown class", f"{name} is of class {item.category_id}, which is unknown")
        elif (entry := entries[item.image_id]) is None:
            continue
        elif _is_flat(item.bbox, entry):
            left_out.count("boxes without width or height", f"annotation {item.id} of {entry.path.name}, {item.bbox}")
        elif masks and (problem := _mask_problem(item, entry, which)):
            left_out.reject("without a mask", f"{name} has no mask {problem}")
        else:
            entry.annotations.append(item)


def _is_flat(box: list[float], entry: Entry) -> bool:
    """Whether nothing of a box is inside its image."""
    left, top, width, height = box
    across, down = min(left + width, entry.width) - max(left, 0), min(top + height, entry.height) - max(top, 0)
    return min(across, down) < LEAST


def _mask_problem(item: Annotation, entry: Entry, which: str) -> str | None:
    """Why a mask cannot be used; those of training are decoded when they are needed."""
    if not item.segmentation:
        return None if item.iscrowd else "(boxes alone are trained with model.head=retinanet or faster_rcnn)"
    try:
        if which == "val":
            check_mask(item.segmentation, entry.height, entry.width)
    except UNREADABLE as error:
        return f"that can be read ({reason(error)})"
    return None
