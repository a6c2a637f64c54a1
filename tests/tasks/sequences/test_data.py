"""Token sets, their batches and their files; readers of texts, pairs and images; splits."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file, save_file

from sightline.tasks.sequences import files
from sightline.tasks.sequences.config import Data
from sightline.tasks.sequences.data import SEQUENCE_TASKS, cut, open_splits
from sightline.tasks.sequences.tokens import TokenSet, cached
from sightline.util.errors import FileError

ROWS = [b"\x00\x01", b"", b"\xff" * 70, b"\x05"]


def test_a_batch_is_padded_behind() -> None:
    tokens = TokenSet.pack(ROWS, [0, 1, 2, 3], 100)
    ids, labels = tokens.batch(np.array([2, 1, 0]), 100)
    assert ids.shape == (3, 100)  # 70 rounded up to a multiple of 64, but not beyond 100
    assert ids[0].tolist() == [256] * 70 + [0] * 30
    assert ids[1].sum() == 0
    assert ids[2, :3].tolist() == [1, 2, 0]
    assert labels.tolist() == [2, 1, 0]
    assert tokens.batch(np.array([1]), 100)[0].shape == (1, 64)
    assert tokens.batch(np.array([2]), 10)[0].tolist() == [[256] * 10]


def test_sequences_of_one_length() -> None:
    """They go another way, to the same batch."""
    rows = [bytes(range(i, i + 64)) for i in range(5)]
    alone, mixed = TokenSet.pack(rows, range(5), 64), TokenSet.pack([*rows, b"x"], range(6), 64)
    order = np.array([3, 0, 3])
    for found, expected in zip(alone.batch(order, 64), mixed.batch(order, 64), strict=True):
        assert found.dtype == expected.dtype
        assert (found == expected).all()
    assert alone.batch(order, 64)[0][1].tolist() == list(range(1, 65))
    assert alone.batch(order, 20)[0].tolist() == mixed.batch(order, 20)[0].tolist()


def test_sequences_that_are_as_long_on_average() -> None:
    tokens = TokenSet.pack([b"\1" * 32, b"\2" * 64, b"\3" * 96], [0, 1, 0], 4000)
    assert tokens.batch(np.array([1]), 4000)[0].unique().tolist() == [3]
    assert tokens.batch(np.array([2]), 64)[0].unique().tolist() == [4]


def test_one_width_where_it_costs_little() -> None:
    """Half of all batches of 32 reach 90 % of the longest sequence here, of batches of two none does."""
    rows = [b"\1" * length for length in [10] * 200 + [190] * 10 + [200]]
    tokens = TokenSet.pack(rows, [0] * len(rows), 4000)
    assert tokens.common_width(32, 4000) == 256
    assert tokens.common_width(2, 4000) is None
    assert tokens.common_width(2, 10) == 10
    ids, _ = tokens.batch(np.array([0, 1]), 4000, 256)
    assert ids.shape == (2, 256)
    assert (ids != 0).sum(1).tolist() == [10, 10]


def test_pairs_are_two_rows() -> None:
    tokens = TokenSet.pack(ROWS, [1, 0], 50, towers=2)
    ids, labels = tokens.batch(np.array([1, 0]), 50)
    assert ids.shape == (2, 2, 50)
    assert (ids[0, 0] == 256).all()
    assert ids[1, 0, :2].tolist() == [1, 2]
    assert labels.tolist() == [0, 1]
    assert tokens.cut == 1


def test_parts_and_orders() -> None:
    tokens = TokenSet.pack(ROWS, [0, 1, 2, 3], 100)
    last = tokens.part(1, 4)
    assert last.lengths.tolist() == [0, 70, 1]
    turned = tokens.shuffled(0)
    assert turned.labels.tolist() == np.random.default_rng(0).permutation(4).tolist() != [0, 1, 2, 3]
    for start, stop, label in zip(turned.ends[:-1], turned.ends[1:], turned.labels, strict=True):
        assert turned.values[start:stop].tobytes() == ROWS[label]


def test_files_are_whole_or_made_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, calls = tmp_path / "deep" / "set.safetensors", []

    def make() -> TokenSet:
        calls.append(1)
        return TokenSet.pack(ROWS, [0, 1, 2, 3], 100)

    for _ in range(2):
        found = cached(path, make, 4, 256, 4)
        assert found.values.tobytes() == b"".join(ROWS)
        assert found.labels.tolist() == [0, 1, 2, 3]
    assert len(calls) == 1
    assert [item.name for item in path.parent.iterdir()] == ["set.safetensors"]
    for damage in (path.read_bytes()[:-5], b"", b"\x00" * 40):
        path.write_bytes(damage)
        assert len(cached(path, make, 4, 256, 4)) == 4
        assert "damaged" in capsys.readouterr().out
    assert len(calls) == 4


def test_a_cache_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    tokens = TokenSet.pack(ROWS, [0, 1, 2, 3], 100)
    found = cached(tmp_path / "file" / "set.safetensors", lambda: tokens, 4, 256, 4)
    assert len(found) == 4
    assert "could not be kept" in capsys.readouterr().out


def imdb(folder: Path) -> Path:
    for split in ("train", "test"):
        for name, text in (("neg", "bad " * 3), ("pos", "gr\u00e9at " * 30), ("unsup", "?")):
            (folder / split / name).mkdir(parents=True)
            for i in range(2):
                (folder / split / name / f"{i}_{i}.txt").write_text(text * (i + 1), encoding="utf-8")
    return folder


def test_reviews_are_bytes(tmp_path: Path) -> None:
    found = open_splits(Data(name="text", length=200, path=str(imdb(tmp_path))))
    assert list(found) == ["train", "val", "test"]
    train = found["train"]
    assert train.labels.tolist() == [0, 0, 1, 1]
    assert train.lengths.tolist() == [12, 24, 200, 200]
    assert bytes(train.values[:12]) == b"bad bad bad "
    assert bytes(train.values[36:43]) == "gr\u00e9at ".encode()
    assert cut(Data(name="text", length=200), train) == 2


def test_reviews_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"train/neg.*aclImdb"):
        open_splits(Data(name="text", path=str(tmp_path)))


def test_pairs_as_published(tmp_path: Path) -> None:
    for split in ("train", "eval", "test"):
        (tmp_path / f"new_aan_pairs.{split}.tsv").write_text('1.0\tA\tB\tone "text\tother\n0.0\tC\tD\t\tlonger text\n')
    found = open_splits(Data(name="retrieval", length=8, path=str(tmp_path)))
    val = found["val"]
    assert (val.towers, val.labels.tolist()) == (2, [1, 0])
    assert val.lengths.tolist() == [8, 5, 0, 8]
    assert val.cut == 2
    assert bytes(val.values[:8]) == b'one "tex'


@pytest.mark.parametrize(
    ("line", "message"),
    [("1.0\ta\tb\tc\n", "4 fields"), ("2\ta\tb\tc\td\n", "label '2'"), ("", "no examples")],
)
def test_bad_pairs(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "new_aan_pairs.train.tsv").write_text(line)
    with pytest.raises(FileError, match=message):
        open_splits(Data(name="retrieval", path=str(tmp_path)), splits=("train",))


def cifar(folder: Path, count: int = 4) -> Path:
    """The ten thousand images of each file, but fewer; image i is all of one colour."""
    folder.mkdir(exist_ok=True)
    for number, name in enumerate((*files.CIFAR_FILES["train"], *files.CIFAR_FILES["test"])):
        records = np.zeros((count, files.RECORD), np.uint8)
        records[:, 0] = (np.arange(count) + number) % 10
        records[:, 1:1025], records[:, 1025:2049], records[:, 2049:] = 10 * number, 100, np.arange(count)[:, None]
        (folder / name).write_bytes(records.tobytes())
    return folder


def test_cifar_is_grey(tmp_path: Path) -> None:
    found = open_splits(Data(name="image", path=str(cifar(tmp_path))))
    assert [len(found[split]) for split in ("train", "val", "test")] == [18, 2, 4]
    assert set(found["train"].lengths.tolist()) == {1024}
    expected = round(0.2989 * 10 + 0.587 * 100 + 0.114 * 2)
    assert set(found["train"].values[6 * 1024 : 7 * 1024].tolist()) == {expected}
    assert found["train"].labels[:8].tolist() == [0, 1, 2, 3, 1, 2, 3, 4]
    assert found["test"].labels.tolist() == [5, 6, 7, 8]


def test_damaged_cifar(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"test_batch\.bin.*cifar-10-batches-bin"):
        open_splits(Data(name="image", path=str(tmp_path)), splits=("test",))
    path = cifar(tmp_path) / "test_batch.bin"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(FileError, match="records of 3073"):
        files.read_cifar(tmp_path, "test")
    path.write_bytes(b"\x0a" + whole[1:])
    with pytest.raises(FileError, match="label 10"):
        files.read_cifar(tmp_path, "test")


def test_pickled_cifar_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "data_batch_1").write_bytes(b"\x80\x04.")
    with pytest.raises(FileError, match="cifar-10-batches-bin"):
        open_splits(Data(name="image", path=str(tmp_path)))


def test_folders_of_images(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for name in ("bird", "cat"):
            (tmp_path / split / name).mkdir(parents=True)
            for i in range(10):
                pixels = rng.integers(0, 256, (32, 32, 3)).astype(np.uint8)
                Image.fromarray(pixels).save(tmp_path / split / name / f"{i}.png")
    found = open_splits(Data(name="image", path=str(tmp_path)))
    assert [len(found[split]) for split in ("train", "val", "test")] == [18, 2, 20]
    assert sorted(found["test"].labels.tolist()) == [2] * 10 + [3] * 10
    assert 0 < (found["train"].labels == 2).sum() < 18
    Image.new("RGB", (30, 32)).save(tmp_path / "test" / "cat" / "x.png")
    with pytest.raises(FileError, match="30x32 pixels"):
        open_splits(Data(name="image", path=str(tmp_path)))


def test_generated_splits_do_not_overlap(tmp_path: Path) -> None:
    config = Data(name="listops", train=40, val=10, test=10, cache=str(tmp_path))
    found = open_splits(config)
    assert [len(found[split]) for split in ("train", "val", "test")] == [40, 10, 10]
    rows = [
        bytes(tokens.values[a:b])
        for tokens in found.values()
        for a, b in zip(tokens.ends[:-1], tokens.ends[1:], strict=True)
    ]
    assert len(set(rows)) == 60
    again = open_splits(config, splits=("test",))
    assert list(again) == ["test"]
    assert (again["test"].values == found["test"].values).all()
    assert [path.name for path in tmp_path.iterdir()] == ["listops-1-0-40-10-10.safetensors"]


@pytest.mark.parametrize("name", ["text", "retrieval", "image"])
def test_what_cannot_be_generated(name: str) -> None:
    with pytest.raises(FileError, match=f"{name} is not generated; give data.path"):
        open_splits(Data(name=name))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", SEQUENCE_TASKS)
def test_folders_that_hold_something_else(tmp_path: Path, name: str) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(FileError, match=r"give|takes"):
            open_splits(Data(name=name, path=str(path)))  # type: ignore[arg-type]


FORGED: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
    "labels above": ("labels", lambda labels: labels + 20),
    "labels below": ("labels", lambda labels: labels - 20),
    "tokens": ("values", lambda values: values + np.uint8(100)),
    "dtype": ("values", lambda values: values.astype(np.int16)),
    "shape": ("ends", lambda ends: ends[:, None]),
    "order": ("ends", lambda ends: ends[[0, 2, 1, *range(3, len(ends))]]),
    "start": ("ends", lambda ends: ends + (np.arange(len(ends)) == 0)),
    "end": ("ends", lambda ends: ends - (np.arange(len(ends)) == len(ends) - 1)),
    "fewer": ("labels", lambda labels: labels[1:]),
}


@pytest.mark.parametrize("case", FORGED)
def test_a_cache_of_something_else_is_made_again(tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str) -> None:
    path, (key, forge) = tmp_path / "set.safetensors", FORGED[case]
    right = TokenSet.pack([b"\x05", b"\x00\x0e", b"\x02"], [0, 9, 3], 100)
    cached(path, lambda: right, 3, 15, 10)
    arrays = load_file(path)
    save_file({**arrays, key: np.ascontiguousarray(forge(arrays[key]))}, path)
    assert cached(path, lambda: right, 3, 15, 10) is right
    assert "damaged; made again" in capsys.readouterr().out
    assert cached(path, lambda: right, 3, 15, 10) is not right


def test_a_cache_of_fewer_examples_is_made_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    open_splits(Data(train=4, val=2, test=2, cache=str(tmp_path)))
    (path,) = tmp_path.iterdir()
    path.rename(tmp_path / path.name.replace("4-2-2", "6-2-2"))
    assert len(open_splits(Data(train=6, val=2, test=2, cache=str(tmp_path)))["train"]) == 6
    assert "damaged; made again" in capsys.readouterr().out


def test_files_from_another_editor(tmp_path: Path) -> None:
    """A byte order mark, line ends of Windows and empty lines at the end."""
    for split in ("train", "eval", "test"):
        text = "1.0\tA\tB\tone\ttwo\r\n0\tC\tD\t\tthree\r\n\r\n"
        (tmp_path / f"new_aan_pairs.{split}.tsv").write_bytes(text.encode("utf-8-sig"))
    for split in ("train", "val", "test"):
        (tmp_path / f"basic_{split}.tsv").write_bytes("Source\tTarget\r\n[MAX 1 2 ]\t2\r\n\r\n".encode("utf-8-sig"))
    assert open_splits(Data(name="retrieval", path=str(tmp_path)))["val"].labels.tolist() == [1, 0]
    assert open_splits(Data(name="listops", path=str(tmp_path)))["val"].labels.tolist() == [2]


def test_a_path_without_a_name() -> None:
    with pytest.raises(FileError, match=r"data\.path: '' .*listops"):
        open_splits(Data(path=""))
