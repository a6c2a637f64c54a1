"""Archives of torch.save that are damaged: torch would read tensors from wrong places, or not notice."""

import random
import zipfile
from pathlib import Path

import pytest
import torch

from sightline.models.weights.archive import check_archive
from sightline.models.weights.reader import read_weights
from sightline.util.errors import FileError


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("archive") / "whole.pth"
    torch.save({f"key{i}": torch.full((8,), float(i)) for i in range(6)}, path)
    return path


def places(path: Path, field: int, size: int) -> list[int]:
    """Where a field of the entries in the directory of an archive is."""
    data = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        start, found = archive.start_dir, []
        for _ in archive.infolist():
            found += range(start + field, start + field + size)
            lengths = (int.from_bytes(data[start + at : start + at + 2], "little") for at in (28, 30, 32))
            start += 46 + sum(lengths)
    return found


@pytest.mark.parametrize(
    ("field", "size"), [(4, 4), (8, 2), (10, 2), (12, 4), (16, 4), (20, 8), (34, 2), (36, 6), (42, 4), (46, 4)]
)
@pytest.mark.parametrize("flip", [0xFF, 0x01])
def test_every_field_of_the_directory(whole: Path, tmp_path: Path, field: int, size: int, flip: int) -> None:
    for place in places(whole, field, size):
        data = bytearray(whole.read_bytes())
        data[place] ^= flip
        path = tmp_path / "damaged.pth"
        path.write_bytes(data)
        with pytest.raises(FileError, match=f"^{path}: "):
            read_weights(path)


@pytest.mark.parametrize("count", [1, 4, 10, 22, 60])
def test_the_end_of_the_directory(whole: Path, tmp_path: Path, count: int) -> None:
    path = tmp_path / "damaged.pth"
    path.write_bytes(whole.read_bytes()[:-count] + b"\xff" * count)
    with pytest.raises(FileError, match=f"^{path}: "):
        read_weights(path)


def test_every_tensor_is_checked(whole: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(whole) as archive:
        entries = [entry for entry in archive.infolist() if "/data/" in entry.filename]
    rng = random.Random(0)
    for entry in entries:
        data = bytearray(whole.read_bytes())
        at = data.index(torch.full((8,), float(entries.index(entry))).numpy().tobytes())
        data[at + rng.randrange(32)] ^= 1 << rng.randrange(8)
        path = tmp_path / "damaged.pth"
        path.write_bytes(data)
        with pytest.raises(FileError, match=entry.filename):
            read_weights(path)


@pytest.mark.parametrize("count", [1, 300])
def test_whole_archives(tmp_path: Path, count: int) -> None:
    path = tmp_path / "a.pth"
    torch.save({str(i): torch.ones(i % 3) for i in range(count)}, path)
    check_archive(path)
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"a": torch.ones(3)}, path)
    finally:
        torch.serialization.set_crc32_options(True)
    check_archive(path)
    assert read_weights(path).state["a"].tolist() == [1, 1, 1]


def test_a_pickle_that_asks_for_memory(tmp_path: Path) -> None:
    path = tmp_path / "large.pth"
    path.write_bytes(b"\x80\x02cbuiltins\nbytearray\nJ\xff\xff\xff\x7f\x85R.")
    with pytest.raises(FileError, match="bytearray"):
        read_weights(path)
