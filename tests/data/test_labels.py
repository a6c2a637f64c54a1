"""Classes of data and outputs of a model brought together."""

import json
from pathlib import Path

import pytest

from sightline.data.labels import imagenet_classes, in_words, match, real_labels
from sightline.util.errors import FileError

FILES = [f"val/n0/ILSVRC2012_val_{i:08d}.JPEG" for i in (1, 2, 6)]


def test_imagenet_is_in_order() -> None:
    names = imagenet_classes()
    assert len(names) == 1000
    assert list(names) == sorted(names)


def test_words() -> None:
    assert in_words(["n01440764", "n02012849"])[0].startswith("tench")
    assert in_words(["cat", "dog"]) == ["cat", "dog"]
    assert in_words(["n99999999", "n01440764"])[0] == "n99999999"


def test_by_name() -> None:
    assert match(["dog", "cat"], ["cat", "cow", "dog"]) == [2, 0]
    assert match(["n01443537", "n01440764"], imagenet_classes()) == [1, 0]
    assert match(["2", "10"], ["10", "2"]) == [1, 0]  # these are names


def test_by_words() -> None:
    assert match([in_words(imagenet_classes())[5].upper()], imagenet_classes()) == [5]
    assert match(["tench", "english_springer", "chain_saw"], imagenet_classes()) == [0, 217, 491]
    with pytest.raises(FileError, match="could be n"):  # the bird and the machine
        match(["crane"], imagenet_classes())


def test_by_place() -> None:
    assert match(["0", "999", "12"], imagenet_classes()) == [0, 999, 12]
    assert match(["1", "0"], ["a", "b"], "v2") == [1, 0]
    assert match(["x", "y"], ["a", "b", "c"], "order") == [0, 1]


@pytest.mark.parametrize(
    ("found", "known", "way", "message"),
    [
        (["dgo"], ["cat", "dog"], "names", "nearest is 'dog'"),
        (["zebra"], ["cat", "dog"], "names", "labels=order"),
        (["2"], ["a", "b"], "v2", "0 to 1"),
        (["x"], ["a", "b"], "v2", "'x'"),
        (["a", "b", "c"], ["a", "b"], "order", "3 classes"),
    ],
)
def test_what_does_not_fit_is_named(found: list[str], known: list[str], way: str, message: str) -> None:
    with pytest.raises(FileError, match=message):
        match(found, known, way)


def test_published_real_labels() -> None:
    table = real_labels(FILES, imagenet_classes())
    assert tuple(table.shape) == (3, 1000)
    sets = [row.nonzero().flatten().tolist() for row in table]
    assert sets == [[], [795, 970], [57]]  # the annotators agreed on nothing in the first


def test_real_labels_from_files(tmp_path: Path) -> None:
    path = tmp_path / "real.json"
    path.write_text(json.dumps([[1, 2], []] + [[5]] * 10))
    assert real_labels(FILES, imagenet_classes(), path).sum(1).tolist() == [2, 0, 1]
    path.write_text(json.dumps({"mine.jpg": [7]}))
    assert real_labels(["folder/mine.png"], imagenet_classes(), path)[0].nonzero().tolist() == [[7]]


def test_real_labels_follow_the_outputs() -> None:
    turned = imagenet_classes()[::-1]
    assert real_labels(FILES[2:], turned)[0].nonzero().flatten().tolist() == [999 - 57]


@pytest.mark.parametrize("text", ["{", "3", "[[1000]]", '[["a"]]', '{"a": 3}', "[[true]]"])
def test_damaged_files_are_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "real.json").write_text(text)
    with pytest.raises(FileError, match=r"real\.json"):
        real_labels(FILES, imagenet_classes(), tmp_path / "real.json")


def test_real_labels_need_imagenet() -> None:
    with pytest.raises(FileError, match="1000 classes"):
        real_labels(FILES, ["cat", "dog"])
    with pytest.raises(FileError, match=r"mine\.png"):
        real_labels(["mine.png"], imagenet_classes())
