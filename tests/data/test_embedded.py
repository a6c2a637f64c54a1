"""The embedded data: what it is, that it is small, and that unpacking it cannot go wrong quietly."""

import os
import tarfile
from collections import Counter
from importlib.resources import files
from pathlib import Path

import pytest
from timm.data import create_dataset

from sightline.data.embedded import SPLITS, embedded
from sightline.data.images import load_image


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return embedded(tmp_path_factory.mktemp("embedded"))


def test_size_and_licence() -> None:
    packed = files("sightline.data") / "fashion_mnist"
    assert sum(len((packed / f"{split}.tar.xz").read_bytes()) for split in SPLITS) <= 5_000_000
    licence = (packed / "LICENSE").read_text(encoding="utf-8")
    assert "The MIT License" in licence
    assert "Zalando" in licence


@pytest.mark.parametrize(("split", "count"), [("train", 1000), ("test", 200)])
def test_timm_reads_ten_classes_of_equal_size(folder: Path, split: str, count: int) -> None:
    data = create_dataset("", str(folder / f"{split}.tar"))
    names = data.reader.class_name_to_idx
    assert len(names) == 10
    assert {"Ankle boot", "T-shirt", "Trouser"} <= names.keys()
    assert set(Counter(data.reader.targets.tolist()).values()) == {count}
    image, label = data[0]
    assert (image.size, int(label)) == ((28, 28), 0)


def test_training_and_test_images_differ(folder: Path) -> None:
    pixels = {}
    for split in SPLITS:
        with tarfile.open(folder / f"{split}.tar") as tar:
            members = tar.getmembers()[::7]
            pixels[split] = {load_image(tar.extractfile(m).read()).tobytes() for m in members}  # type: ignore[union-attr]
    assert len(pixels["train"]) > 1400
    assert not pixels["train"] & pixels["test"]


def test_damage_is_repaired_and_nothing_else_is_touched(tmp_path: Path) -> None:
    embedded(tmp_path)
    whole = (tmp_path / "test.tar").read_bytes()
    (tmp_path / "test.tar").write_bytes(whole[:1000])
    kept = (tmp_path / "train.tar").stat().st_mtime_ns
    embedded(tmp_path)
    assert (tmp_path / "test.tar").read_bytes() == whole
    assert (tmp_path / "train.tar").stat().st_mtime_ns == kept
    assert sorted(path.name for path in tmp_path.iterdir()) == ["test.tar", "train.tar"]


def test_the_cache_can_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "here"))
    assert embedded().parent == tmp_path / "here"


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "file"))
    with pytest.raises(OSError, match="SIGHTLINE_CACHE"):
        embedded()


def test_an_unwritable_home_falls_back_to_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.delenv("SIGHTLINE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "tmp"))
    os.mkdir(tmp_path / "tmp")
    assert embedded().parent.parent == tmp_path / "tmp"
