"""COCO instances: what is read, what is counted, and what is rejected in one line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sightline.data.images import ImageError
from sightline.tasks.detection.coco import decode
from sightline.tasks.detection.config import Data
from sightline.tasks.detection.data import Entry, open_split
from tests.tasks.detection.tiny import change, make_data, runs, scene


def test_boxes_labels_and_masks(tmp_path: Path) -> None:
    split = open_split(Data(path=str(make_data(tmp_path))), "train", masks=True)
    assert split.classes == ("square", "disc")  # by the numbers of their categories
    assert split.categories == (1, 7)
    target = split.target(0)  # without the crowd
    assert target["labels"].tolist() == [1, 2]
    image, objects = scene(0)
    for box, mask, item in zip(target["boxes"].tolist(), target["masks"].numpy(), objects, strict=True):
        left, top, width, height = item["bbox"]
        assert box == [left, top, left + width, top + height]
        colour = np.array([200, 40, 40]) if item["category_id"] == 1 else np.array([40, 60, 220])
        assert np.array_equal(mask.astype(bool), (image == colour).all(-1))
    assert [a["iscrowd"] for a in split.ground_truth()["annotations"]].count(1) == 1


def test_run_lengths_as_list_and_text() -> None:
    from faster_coco_eval import mask as tools

    mask = np.random.default_rng(0).random((17, 23)) < 0.4
    as_list = {"size": [17, 23], "counts": runs(mask)}
    as_text = tools.encode(np.asfortranarray(mask.astype(np.uint8)))
    assert np.array_equal(decode(as_list, 17, 23), mask)
    assert np.array_equal(decode({"size": [17, 23], "counts": as_text["counts"]}, 17, 23), mask)


@pytest.mark.parametrize(
    "box", [[10, 10, 0, 20], [10, 10, 20, 0], [500, 10, 20, 20], [10, 10, -5, 20], [5, 5, 1e-9, 9]]
)
def test_degenerate_boxes_are_counted(tmp_path: Path, box: list[float]) -> None:
    root = make_data(tmp_path)
    path = change(root, annotations=lambda items: items[0].update(bbox=box))
    split = open_split(Data(path=str(root)), "train")
    assert len(split.target(0)["boxes"]) == 1
    (note,) = split.notes
    assert note.startswith(f"{path}: 1 left out: boxes without width or height, such as annotation 1 of 0.png")


def test_images_without_objects(tmp_path: Path) -> None:
    root = make_data(tmp_path)
    change(root, annotations=lambda items: items.__delitem__(slice(0, 2)))  # the crowd of the first image stays
    split = open_split(Data(path=str(root)), "train")
    assert len(split) == 1
    assert "1 left out: images without objects, such as 0.png" in split.notes[0]
    kept = open_split(Data(path=str(root), empty="keep"), "train", masks=True)
    assert len(kept) == 2
    target = kept.target(0)
    assert target["boxes"].shape == (0, 4)
    assert target["masks"].shape == (0, 96, 112)


def test_sorting_out_images_compares_none_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with each other would take an hour for COCO's 118,287 images."""
    root = make_data(tmp_path, 3)
    change(root, annotations=lambda items: items.__delitem__(slice(0, 2)))
    compared: list[Any] = []
    monkeypatch.setattr(Entry, "__eq__", lambda entry, other: bool(compared.append(other)))
    assert len(open_split(Data(path=str(root)), "train")) == 2
    assert not compared


@pytest.mark.parametrize(
    ("lists", "message", "left"),
    [
        ({"annotations": lambda items: items[0].update(category_id=99)}, "annotation 1 .* 99", (2, 3)),
        ({"annotations": lambda items: items[0].update(image_id=5)}, "annotation 1 .* 5", (2, 3)),
        ({"annotations": lambda items: items[0].update(image_id=[100])}, r"annotation 1 has image_id.*\[100\]", (2, 3)),
        (
            {"annotations": lambda items: items[0].update(category_id=[1])},
            r"annotation 1 has category_id.*\[1\]",
            (2, 3),
        ),
        ({"annotations": lambda items: items[0].update(iscrowd="no")}, "annotation 1 has iscrowd.*'no'", (2, 3)),
        ({"annotations": lambda items: items[0].pop("bbox")}, "annotation 1 has bbox", (2, 3)),
        ({"annotations": lambda items: items[0].update(bbox=[1, 2, 3])}, r"annotation 1 has bbox.*\[1, 2, 3\]", (2, 3)),
        ({"annotations": lambda items: items[0].update(bbox=[1, 2, 10**400, 3])}, "annotation 1 has bbox.2", (2, 3)),
        ({"images": lambda items: items[0].update(file_name="no.png")}, r"no\.png: ", (1, 2)),
        ({"images": lambda items: items[0].update(file_name="x" * 300)}, "x: ", (1, 2)),
    ],
)
def test_what_cannot_be_used(tmp_path: Path, lists: dict[str, Any], message: str, left: tuple[int, int]) -> None:
    root = make_data(tmp_path)
    change(root, **lists)
    with pytest.raises(ValueError, match=message) as error:
        open_split(Data(path=str(root)), "train")
    assert "instances_train2017.json" in str(error.value)
    assert "\n" not in str(error.value)
    split = open_split(Data(path=str(root), on_error="skip"), "train")
    assert (len(split), sum(len(split.target(i)["labels"]) for i in range(len(split)))) == left
    assert "1 left out" in split.notes[0]


def test_an_image_of_another_size(tmp_path: Path) -> None:
    path = make_data(tmp_path) / "train2017/0.png"
    Image.new("RGB", (10, 12)).save(path)
    with pytest.raises(ImageError, match=rf"{path}: 12x10 .*96x112"):
        open_split(Data(path=str(tmp_path)), "train").image(0)


def test_objects_without_masks(tmp_path: Path) -> None:
    root = make_data(tmp_path)
    change(root, annotations=lambda items: items[0].update(segmentation=[]))
    open_split(Data(path=str(root)), "train")
    with pytest.raises(ValueError, match=r"annotation 1 has no mask.*retinanet.*data\.on_error=skip"):
        open_split(Data(path=str(root)), "train", masks=True)


@pytest.mark.parametrize("which", ["train", "val"])
@pytest.mark.parametrize("damage", [lambda item: item.pop("segmentation"), lambda item: item.update(segmentation=[])])
def test_objects_without_masks_are_skipped(tmp_path: Path, which: str, damage: Callable[[dict], object]) -> None:
    data = Data(path=str(make_data(tmp_path)), on_error="skip")
    whole = len(open_split(data, which, masks=True).ground_truth()["annotations"])
    path = change(tmp_path, f"{which}2017", annotations=lambda items: damage(items[0]))
    split = open_split(data, which, masks=True)
    assert len(split.ground_truth()["annotations"]) == whole - 1
    assert split.notes[0].startswith(f"{path}: 1 left out: without a mask, such as {path}: annotation 1 has no mask")
    assert len(split.target(0)["masks"]) == len(split.target(0)["labels"])


@pytest.mark.parametrize("text", ["{", "[]", '{"images": 3}', '{"images": [], "annotations": [], "categories": []}'])
def test_files_that_are_no_instances(tmp_path: Path, text: str) -> None:
    path = make_data(tmp_path) / "annotations/instances_train2017.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=str(path)):
        open_split(Data(path=str(tmp_path)), "train")


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ({"categories": lambda items: items[0].update(id="one")}, "categories.0.id: .*'one'"),
        ({"categories": lambda items: items[0].update(id=True)}, "categories.0.id: .* True"),
        ({"categories": lambda items: items[0].update(id=1)}, "2 categories with id 1"),
        ({"categories": lambda items: items[0].update(name=None)}, "categories.0.name: .* None"),
        ({"images": lambda items: items[0].update(id=[1])}, r"images.0.id: .*\[1\]"),
        ({"images": lambda items: items[0].update(id=101)}, "2 images with id 101"),
        ({"images": lambda items: items[0].update(file_name=5)}, "images.0.file_name: .* 5"),
        ({"images": lambda items: items[0].update(height=None)}, "images.0.height: .* None"),
        ({"images": lambda items: items[0].update(width=0)}, "images.0.width: .* 0"),
        ({"images": lambda items: items[0].update(width=10**9)}, "images.0: .*96x1000000000"),
    ],
)
def test_rows_that_cannot_be_used(tmp_path: Path, lists: dict[str, Any], message: str) -> None:
    path = change(make_data(tmp_path), **lists)
    with pytest.raises(ValueError, match=f"^{path}: .*{message}") as error:
        open_split(Data(path=str(tmp_path), on_error="skip"), "train")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("area", [None, "large", 10**400])
def test_an_area_that_is_no_number_is_that_of_the_box(tmp_path: Path, area: Any) -> None:
    change(make_data(tmp_path), annotations=lambda items: items[0].update(area=area))
    split = open_split(Data(path=str(tmp_path)), "train")
    first = split.ground_truth()["annotations"][0]
    assert first["area"] == first["bbox"][2] * first["bbox"][3]


@pytest.mark.parametrize(
    "segmentation",
    [[[1, 2, 3, 4]], [[1, 2, 3, 4, 5, 6, 7]], [[0, 0, 1e12, 0, 1e12, 1e12]],  # drawn, the last would take all memory
     {"size": [5, 5], "counts": [25]}, {"size": [96, 112], "counts": [5]},
     "words", 5, [1, 2, 3, 4, 5, 6], {"counts": [10]}, {"size": 96, "counts": [10]}, {"size": [96, 112], "counts": "é"},
     {"size": [96, 112], "counts": 7}, {"size": [96, 112], "counts": "5555"}],
    ids=str,
)  # fmt: skip
def test_damaged_masks_to_evaluate_on_are_found_first(tmp_path: Path, segmentation: Any) -> None:
    path = change(make_data(tmp_path), "val2017", annotations=lambda items: items[0].update(segmentation=segmentation))
    with pytest.raises(ValueError, match=f"^{path}: annotation 1 has no mask that can be read") as error:
        open_split(Data(path=str(tmp_path)), "val", masks=True)
    assert "\n" not in str(error.value)
    skipping = open_split(Data(path=str(tmp_path), on_error="skip"), "val", masks=True)
    assert len(skipping.ground_truth()["annotations"]) == 4
    boxes = open_split(Data(path=str(tmp_path)), "val").ground_truth()
    assert [item["segmentation"] for item in boxes["annotations"]] == [[]] * 5
    change(tmp_path, annotations=lambda items: items[0].update(segmentation=segmentation))
    path = tmp_path / "annotations/instances_train2017.json"
    with pytest.raises(ImageError, match=f"^{path}: annotation 1 of 0.png has no mask that can be read"):
        open_split(Data(path=str(tmp_path)), "train", masks=True).target(0)


def test_a_byte_order_mark(tmp_path: Path) -> None:
    path = make_data(tmp_path) / "annotations/instances_train2017.json"
    path.write_text(path.read_text(), encoding="utf-8-sig")
    assert len(open_split(Data(path=str(tmp_path)), "train")) == 2


def test_a_file_none_of_whose_images_is_there(tmp_path: Path) -> None:
    for path in (make_data(tmp_path) / "val2017").iterdir():
        path.unlink()
    with pytest.raises(ValueError, match=f"none of its images is in {tmp_path / 'val2017'}"):
        open_split(Data(path=str(tmp_path), on_error="skip"), "val")


@pytest.mark.parametrize("turn", [5, 6, 7, 8])
def test_boxes_say_how_an_image_lies(tmp_path: Path, turn: int) -> None:
    """An entry of EXIF turns it, but the annotations are of 96 x 112 pixels, as they are stored."""
    entry = Image.Exif()
    entry[0x0112] = turn
    Image.fromarray(scene(0)[0]).save(make_data(tmp_path) / "train2017/0.png", exif=entry)
    found = open_split(Data(path=str(tmp_path)), "train").image(0)
    assert np.array_equal(np.asarray(found), scene(0)[0])


def test_a_split_that_is_not_there_names_those_that_are(tmp_path: Path) -> None:
    root = make_data(tmp_path)
    with pytest.raises(ValueError, match=r"no 'tset' split; expected .*; there are train2017, val2017$"):
        open_split(Data(path=str(root), val_split="tset"), "val")
