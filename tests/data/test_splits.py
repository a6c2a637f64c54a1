"""Images and labels from every kind of source, and one clear line for each way they can be wrong."""

import io
import json
import os
import shutil
import tarfile
from pathlib import Path

import datasets
import numpy as np
import pytest
from PIL import Image

from sightline.data.images import ImageError
from sightline.data.splits import Split
from sightline.tasks.classification.config import Data
from sightline.tasks.classification.data import open_split
from sightline.util.errors import FileError, InputError
from tests.engine.tiny import CLASSES, make_images


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_images(tmp_path / "images", train=3, val=2)


def content(split: Split) -> list[tuple[int, bytes]]:
    """Class and pixels of every image, in an order of its own."""
    return sorted((split.targets[i], split.image(i).tobytes()) for i in range(len(split)))


def add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    archive.addfile(info, io.BytesIO(data))


def as_tar(folder: Path, out: Path) -> Path:
    out.mkdir()
    for split in ("train", "val"):
        with tarfile.open(out / f"{split}.tar", "w") as archive:
            for path in sorted((folder / split).rglob("*")):
                if path.is_file():
                    add(archive, str(path.relative_to(folder / split)), path.read_bytes())
    return out


def as_shards(folder: Path, out: Path, label: str) -> Path:
    out.mkdir()
    for split in ("train", "val"):
        for shard, name in enumerate(CLASSES):
            with tarfile.open(out / f"pets-{split}-{shard:04d}.tar", "w") as archive:
                for path in sorted((folder / split / name).iterdir()):
                    key = f"{name}{path.name.replace('.', '-')}"
                    add(archive, f"{key}{path.suffix}", path.read_bytes())
                    text = str(shard) if label == "cls" else json.dumps({"label": name})
                    add(archive, f"{key}.{label}", text.encode())
    return out


def as_parquet(folder: Path, out: Path) -> Path:
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=list(CLASSES))})
    out.mkdir()
    for split, name in (("train", "train"), ("val", "validation")):
        paths = sorted((folder / split).rglob("*.png"))
        rows = {"image": [str(p) for p in paths], "label": [CLASSES.index(p.parent.name) for p in paths]}
        datasets.Dataset.from_dict(rows, features=features).to_parquet(out / f"{name}-0.parquet")
    return out


@pytest.mark.parametrize("kind", ["tar", "cls", "json", "parquet"])
def test_every_source_holds_the_same(folder: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / kind
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    if kind == "parquet":
        path = f"hfds/{as_parquet(folder, out)}"
    else:
        path = str(as_tar(folder, out) if kind == "tar" else as_shards(folder, out, kind))
    expected = open_split(Data(path=str(folder)), "train")
    assert expected.classes == CLASSES
    found = open_split(Data(path=path), "train")
    assert found.classes == (("0", "1", "2") if kind == "cls" else CLASSES)
    assert content(found) == content(expected)
    val = open_split(Data(path=path), "val", found.classes)
    assert content(val) == content(open_split(Data(path=str(folder)), "val"))


@pytest.mark.parametrize("nested", [False, True])
def test_a_tar_file_per_class(folder: Path, tmp_path: Path, nested: bool) -> None:
    out = tmp_path / "tars"
    for split in ("train", "val"):
        (out / split).mkdir(parents=True)
        for name in CLASSES:
            with tarfile.open(out / split / f"{name}.tar", "w") as archive:
                for path in sorted((folder / split / name).iterdir()):
                    add(archive, path.name, path.read_bytes())
        if nested:
            with tarfile.open(out / f"{split}.tar", "w") as archive:
                for path in sorted((out / split).iterdir()):
                    add(archive, path.name, path.read_bytes())
            shutil.rmtree(out / split)
    found = open_split(Data(path=str(out)), "train")
    assert found.classes == CLASSES
    assert content(found) == content(open_split(Data(path=str(folder)), "train"))


def test_tar_is_read_by_several_processes_at_once(folder: Path, tmp_path: Path) -> None:
    from sightline.data.loader import BrokenImages, ItemLoader, Items

    split = open_split(Data(path=str(as_tar(folder, tmp_path / "tar"))), "train")
    split.image(0)  # opens the archive before the processes start
    items = Items(9, lambda index, _: np.asarray(split.image(index)), replace=False)
    loader = ItemLoader(items, 2, BrokenImages("stop").add, list)
    alone = [np.asarray(split.image(i)) for i in range(9)]
    for number, batch in enumerate(loader.batches(lambda: iter([[(i, 0)] for i in range(9)] * 5))):
        assert np.array_equal(batch[0], alone[number % 9])
    loader.close()


def test_embedded_data() -> None:
    train, val = open_split(Data(limit=3), "train"), open_split(Data(limit=2), "val")
    assert (len(train), len(val), len(train.classes)) == (30, 20, 10)
    assert train.image(0).size == (28, 28)
    with pytest.raises(FileError, match="no split 'foo'"):
        open_split(Data(train_split="foo"), "train")


def rejects(message: str, data: Data, which: str = "train", classes: tuple[str, ...] | None = None) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        open_split(data, which, classes)
    assert "\n" not in str(caught.value)


def test_wrong_folders(folder: Path, tmp_path: Path) -> None:
    rejects("nowhere: no such folder", Data(path=str(tmp_path / "nowhere")))
    rejects("no split val or validation or test or eval; it holds train", _without(folder, "val"), "val")
    rejects("no split dev", Data(path=str(folder), train_split="dev"))
    rejects(
        "it needs the folders train and val, each with a folder of images per class", Data(path=str(folder / "train"))
    )
    (tmp_path / "text.txt").write_text("x")
    rejects("text.txt: no such folder or tar file", Data(path=str(tmp_path / "text.txt")), "val")
    rejects("one file holds no splits", Data(path=str(as_tar(folder, tmp_path / "tars") / "train.tar")))
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad/train.tar").write_bytes(b"no archive")
    rejects("train.tar: not a readable tar file", Data(path=str(tmp_path / "bad")))
    tarfile.open(tmp_path / "bad/train.tar", "w").close()
    rejects("train.tar: no images", Data(path=str(tmp_path / "bad")))


def _without(folder: Path, split: str) -> Data:
    shutil.rmtree(folder / split)
    return Data(path=str(folder))


def test_empty_and_single_classes(folder: Path) -> None:
    (folder / "train/violet").mkdir()
    rejects("no images of class violet", Data(path=str(folder)))
    (folder / "train/violet").rmdir()
    (folder / "val/violet").mkdir()
    open_split(Data(path=str(folder)), "val", CLASSES)  # nothing to evaluate of a class is no error
    Image.new("RGB", (3, 3)).save(folder / "val/violet/0.png")
    rejects("class 'violet' is not among the 3 of training", Data(path=str(folder)), "val", CLASSES)
    for name in CLASSES[1:]:
        shutil.rmtree(folder / "train" / name)
    rejects("only one class, 'blue'", Data(path=str(folder)))
    assert len(open_split(Data(path=str(folder), val_split="train"), "val")) > 0  # one is enough to evaluate
    shutil.rmtree(folder / "train/blue")
    rejects("no images in it", Data(path=str(folder)))


def test_names_that_are_no_text(folder: Path) -> None:
    os.rename(folder / "train/red", os.fsencode(folder / "train") + b"/r\xff")
    rejects(r"the name of class 'r.udcff' is not UTF-8; rename it", Data(path=str(folder)))


def test_class_map(folder: Path, tmp_path: Path) -> None:
    names = tmp_path / "names.txt"
    names.write_text("red\ngreen\nblue\n")
    assert open_split(Data(path=str(folder), class_map=str(names)), "train").classes == ("red", "green", "blue")
    names.write_text("red\nred\n")
    rejects("needs two or more different names", Data(path=str(folder), class_map=str(names)))
    rejects("cannot be read", Data(path=str(folder), class_map="nowhere"))


def test_wrong_columns(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    path = f"hfds/{as_parquet(folder, tmp_path / 'rows')}"
    rejects("no column 'img' among image, label; give data.image_key", Data(path=path, image_key="img"))
    rejects("no dataset or no split dev", Data(path=path, train_split="dev"))
    rejects(f"for parquet files, give data.path={path}$", Data(path=path.removeprefix("hfds/")))


@pytest.mark.parametrize("empty", [None, {"bytes": None, "path": None}])
def test_rows_without_an_image_or_a_label(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty: object
) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    good = {"bytes": (folder / "train/red/0.png").read_bytes(), "path": None}
    for name, rows in (
        ("image", {"image": [good, good, empty], "label": [0, 1, 1]}),
        ("label", {"image": [good, good, good], "label": [0, 1, None]}),
    ):
        (tmp_path / name).mkdir()
        datasets.Dataset.from_dict(rows).to_parquet(tmp_path / name / "train-0.parquet")
    rejects("row 2 has the label None; give it a number or a name", Data(path=f"hfds/{tmp_path / 'label'}"))
    split = open_split(Data(path=f"hfds/{tmp_path / 'image'}"), "train")
    assert split.image(0).size == (24, 20)
    with pytest.raises(ImageError, match="2: there is no image in this row"):
        split.image(2)


def test_wrong_shards(folder: Path, tmp_path: Path) -> None:
    for name, data, message in (
        ("a.cls", b"\xff\xfe", "not a label"),
        ("b.png", b"x", "has no label"),
        ("a.json", b"[1]", "not a label"),
    ):
        path = tmp_path / name
        path.mkdir()
        with tarfile.open(path / "train-0.tar", "w") as archive:
            add(archive, "a.png", b"x")
            add(archive, name, data)
        rejects(message, Data(path=str(path), source="wds"))


def test_broken_image_is_named(folder: Path) -> None:
    broken = folder / "train/green/1.png"
    broken.write_bytes(broken.read_bytes()[:60])
    split = open_split(Data(path=str(folder)), "train")
    with pytest.raises(ImageError, match=r"green/1\.png: cannot be read"):
        split.image(4)


def test_an_empty_path_is_not_the_embedded_data() -> None:
    with pytest.raises(InputError, match=r"data\.path: the path is empty; give a folder"):
        open_split(Data(path=""), "train")


KINDS = {"webp": "RGB", "gif": "P", "bmp": "RGB", "tiff": "RGB", "tif": "L", "ppm": "RGB"}


@pytest.mark.parametrize("kind", ["folder", "tar", "cls"])
def test_every_kind_of_image_counts(folder: Path, tmp_path: Path, kind: str) -> None:
    for ending, mode in KINDS.items():
        Image.new(mode, (9, 7)).save(folder / f"train/red/odd.{ending}")
    path = folder
    if kind != "folder":
        path = as_tar(folder, tmp_path / kind) if kind == "tar" else as_shards(folder, tmp_path / kind, kind)
    split = open_split(Data(path=str(path)), "train")
    assert len(split) == 9 + len(KINDS)
    assert sum(split.image(i).size == (9, 7) for i in range(len(split))) == len(KINDS)
    assert split.notes == ()


def test_what_is_passed_over_is_counted_and_named(folder: Path) -> None:
    for name in ("red/a.heic", "red/b.heic", "blue/list.txt", "blue/.hidden.png", ".ipynb_checkpoints/x.png", "up.png"):
        (folder / "train" / name).parent.mkdir(exist_ok=True)
        (folder / "train" / name).write_bytes(b"x")
    split = open_split(Data(path=str(folder), limit=1), "train")
    assert (len(split), split.classes) == (3, CLASSES)
    (note,) = split.notes
    assert "4 files passed over (2 .heic, 1 .txt, 1 outside of class folders), such as blue/list.txt" in note


def test_images_may_lie_deeper_than_their_class(folder: Path) -> None:
    (folder / "train/red/more/still").mkdir(parents=True)
    (folder / "train/red/0.png").rename(folder / "train/red/more/still/0.png")
    split = open_split(Data(path=str(folder)), "train")
    assert split.classes == CLASSES
    assert split.targets == [0] * 3 + [1] * 3 + [2] * 3


def test_links(folder: Path, tmp_path: Path) -> None:
    data = Data(path=str(folder))
    before = content(open_split(data, "train"))
    (folder / "train/red").rename(tmp_path / "elsewhere")
    (folder / "train/red").symlink_to(tmp_path / "elsewhere")  # a class that lies elsewhere
    (folder / "train/blue/0.png").rename(tmp_path / "image.png")
    (folder / "train/blue/0.png").symlink_to(tmp_path / "image.png")
    split = open_split(data, "train")
    assert content(split) == before
    assert split.notes == ()
    (folder / "train/green/9.png").symlink_to("../blue/1.png")
    (note,) = open_split(data, "train").notes
    assert "1 image linked from another class, such as green/9.png from blue; each counts for both" in note


@pytest.mark.parametrize(("link", "target"), [("red/again", ".."), ("red/self", "."), ("crimson", "red")])
def test_a_folder_is_not_read_twice(folder: Path, link: str, target: str) -> None:
    (folder / "train" / link).symlink_to(target)
    rejects("a link to .*, which would be read twice; remove the link", Data(path=str(folder)))
