"""Layouts, classes files, and bad input that is named in one line."""

import json
from pathlib import Path
from shutil import copy

import numpy as np
import pytest
from PIL import Image, ImageOps

from sightline.data.images import ImageError
from sightline.tasks.segmentation.config import Data
from sightline.tasks.segmentation.data import IGNORE, open_split
from tests.tasks.segmentation.tiny import CLASSES, make_data, scene


def save_mask(path: Path, values: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values.astype(np.uint8)).save(path)


def test_folders_with_classes(tmp_path: Path) -> None:
    (make_data(tmp_path) / "images/train/folder.png").mkdir()
    split = open_split(Data(path=str(tmp_path)), "train")
    assert split.classes == CLASSES
    image, mask = split.read(1)
    picture, values = scene(1)
    assert np.array_equal(np.asarray(image), picture)
    assert (mask[0, :4] == IGNORE).all()
    assert np.array_equal(mask[1:], values[1:])


def test_splits_above_kinds_and_a_text_file(tmp_path: Path) -> None:
    for split in ("train", "test"):
        save_mask(tmp_path / split / "masks" / "a.png", np.ones((8, 8)))
        save_mask(tmp_path / split / "images" / "a.png", np.ones((8, 8)))
    (tmp_path / "classes.txt").write_text("one\ntwo\n")
    data = Data(path=str(tmp_path))
    assert open_split(data, "val").classes == ("one", "two")
    assert (open_split(data, "train").read(0)[1] == 1).all()


def test_ade20k_as_released(tmp_path: Path) -> None:
    root = tmp_path / "ADEChallengeData2016"
    values = np.zeros((8, 8))
    values[0, :3] = (1, 150, 7)
    for split in ("training", "validation"):
        save_mask(root / "annotations" / split / "ADE_1.png", values)
        (root / "images" / split).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(root / "images" / split / "ADE_1.jpg")
    split = open_split(Data(path=str(tmp_path)), "val")
    assert len(split.classes) == 150
    mask = split.read(0)[1]
    assert mask[0, :4].tolist() == [0, 149, 6, IGNORE]
    assert (mask[1:] == IGNORE).all()
    names = "Idx\tRatio\tTrain\tVal\tStuff\tName\n" + "".join(f"{i}\t0\t1\t1\t1\tthing {i}, x\n" for i in range(1, 151))
    (root / "objectInfo150.txt").write_text(names)
    assert open_split(Data(path=str(tmp_path)), "train").classes[149] == "thing 150"


def test_palette_and_16_bit_masks(tmp_path: Path) -> None:
    make_data(tmp_path)
    values = scene(0)[1]
    paletted = Image.fromarray(values).convert("P")
    paletted.putpalette([255, 0, 0] * 256)
    paletted.putdata(values.reshape(-1).tolist())
    paletted.save(tmp_path / "masks/train/0.png")
    Image.fromarray(scene(1)[1].astype(np.uint16)).save(tmp_path / "masks/train/1.png")
    split = open_split(Data(path=str(tmp_path)), "train")
    assert np.array_equal(split.read(0)[1], values)
    assert np.array_equal(split.read(1)[1], scene(1)[1])


def message_of(root: Path, index: int = 0) -> str:
    with pytest.raises(ImageError) as error:
        open_split(Data(path=str(root)), "train").read(index)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_mask_of_another_size(tmp_path: Path) -> None:
    path = make_data(tmp_path) / "masks/train/0.png"
    save_mask(path, np.zeros((10, 12)))
    message = message_of(tmp_path)
    assert str(path) in message
    assert "64x64" in message
    assert "10x12" in message


def test_an_unknown_class(tmp_path: Path) -> None:
    path = make_data(tmp_path) / "masks/train/0.png"
    save_mask(path, np.full((64, 64), 3))
    assert message_of(tmp_path).startswith(f"{path}: class 3,")


def test_a_colour_picture_is_no_mask(tmp_path: Path) -> None:
    path = make_data(tmp_path) / "masks/train/0.png"
    Image.new("RGB", (64, 64)).save(path)
    assert message_of(tmp_path).startswith(f"{path}: an image of mode RGB")


def test_a_damaged_mask(tmp_path: Path) -> None:
    path = make_data(tmp_path) / "masks/train/0.png"
    path.write_bytes(path.read_bytes()[:60])
    assert message_of(tmp_path).startswith(f"{path}: cannot be read")


def test_masks_as_jpeg(tmp_path: Path) -> None:
    mask = make_data(tmp_path) / "masks/train/0.png"
    Image.open(mask).save(mask.with_suffix(".JPG"))
    assert not open_split(Data(path=str(tmp_path)), "train").notes  # its PNG is used
    mask.unlink()
    with pytest.raises(ValueError, match=r"masks/train/0\.JPG: JPEG .* save it as PNG;"):
        open_split(Data(path=str(tmp_path)), "train")
    (note,) = open_split(Data(path=str(tmp_path), on_error="skip"), "train").notes
    assert "1 left out: with a mask as JPEG" in note


@pytest.mark.parametrize("kind", ["images", "masks"])
def test_what_stands_alone(tmp_path: Path, kind: str) -> None:
    make_data(tmp_path)
    (tmp_path / kind / "train" / "0.png").unlink()
    with pytest.raises(ValueError, match=r"0\.png: .*data\.on_error=skip"):
        open_split(Data(path=str(tmp_path)), "train")
    split = open_split(Data(path=str(tmp_path), on_error="skip"), "train")
    assert len(split) == 1
    assert "1 left out" in split.notes[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda root: (root / "classes.json").unlink(), r"classes\.json"),
        (lambda root: (root / "classes.json").write_text("{"), r"classes\.json: "),
        (lambda root: (root / "classes.json").write_text(json.dumps({"classes": []})), r"classes\.json: no classes"),
        *(
            (
                lambda root, given=given: (root / "classes.json").write_text(json.dumps(given)),
                r"classes\.json: no classes",
            )
            for given in (
                ["road", 3, "sky"],
                ["road", " "],
                {"0": "a", "2": "b"},
                {"1": "a"},
                {"a": "road"},
                5,
                True,
                "road",
                {"classes": "road"},
                {"classes": 7},
                {"classes": ["road"], "ignore_index": True},
            )
        ),
        (
            lambda root: copy(root / "images/train/0.png", root / "images/train/0.jpg"),
            r"0\.jpg",
        ),
        (lambda root: (root / "images").rename(root / "pictures"), "no train split"),
        (lambda root: (root / "masks").rename(root / "gt"), "images/train: no masks"),
        (lambda root: root.rename(root.parent / "away"), r"data\.path: .*data"),
    ],
)
def test_folders_that_cannot_be_read(tmp_path: Path, change: object, message: str) -> None:
    root = make_data(tmp_path / "data")
    change(root)  # type: ignore[operator]
    with pytest.raises(ValueError, match=message):
        open_split(Data(path=str(root)), "train")


def test_classes_by_number(tmp_path: Path) -> None:
    numbered = {str(i): f"class {i}" for i in range(11)}
    shuffled = dict(sorted(numbered.items()))  # "10" before "2"
    path = make_data(tmp_path) / "classes.json"
    for given in (shuffled, {**shuffled, "ignore_index": 9}, {"classes": shuffled}):
        path.write_text(json.dumps(given))
        assert open_split(Data(path=str(tmp_path)), "train").classes == tuple(numbered.values())


def test_a_line_without_a_name_is_rejected(tmp_path: Path) -> None:
    (make_data(tmp_path) / "classes.json").unlink()
    path = tmp_path / "classes.txt"
    path.write_text("\ufeffground\nsquare\ndisc\n\n")  # with the mark that some editors begin a file with
    assert open_split(Data(path=str(tmp_path), ignore=9), "train").classes == ("ground", "square", "disc")
    path.write_text("ground\n\ndisc\n")
    with pytest.raises(ValueError, match=f"{path}: no classes"):
        open_split(Data(path=str(tmp_path), ignore=9), "train")


@pytest.mark.parametrize("turn", [5, 6, 7, 8])
def test_the_mask_says_how_an_image_lies(tmp_path: Path, turn: int) -> None:
    """As it is stored, or upright as an entry of EXIF says: whichever has the size of the mask."""
    entry = Image.Exif()
    entry[0x0112] = turn
    root = make_data(tmp_path, height=64, width=80)
    stored = Image.open(root / "images/train/0.png")
    stored.save(root / "images/train/0.png", exif=entry)
    split = open_split(Data(path=str(root)), "train")
    assert np.array_equal(np.asarray(split.read(0)[0]), scene(0, height=64, width=80)[0])
    upright = ImageOps.exif_transpose(Image.open(root / "images/train/0.png"))
    save_mask(root / "masks/train/0.png", np.zeros((80, 64)))
    assert np.array_equal(np.asarray(split.read(0)[0]), np.asarray(upright))


def test_a_split_that_is_not_there_names_those_that_are(tmp_path: Path) -> None:
    root = make_data(tmp_path / "data")
    with pytest.raises(ValueError, match=r"no 'tset' split; expected .*; there are train, val$"):
        open_split(Data(path=str(root), val_split="tset"), "val")
