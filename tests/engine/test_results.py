"""The files of an evaluation."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from sightline.engine.results import write_scores
from sightline.util.errors import InputError

ONE: dict[str, Any] = {"per_class": [{"class": "cat", "recall": 50.0}, {"class": "dog", "recall": None}]}


def test_one_evaluation(tmp_path: Path) -> None:
    written = write_scores(tmp_path / "out", {**ONE, "confusion": [[1, 1], [0, 2]]})
    assert [path.name for path in written] == ["eval.json", "per_class.csv", "confusion.csv", "confusion.png"]
    assert json.loads(written[0].read_text())["per_class"] == ONE["per_class"]
    assert list(csv.reader(written[1].open())) == [["class", "recall"], ["cat", "50.0"], ["dog", ""]]
    assert list(csv.reader(written[2].open())) == [["true class", "cat", "dog"], ["cat", "1", "1"], ["dog", "0", "2"]]


def test_several_sizes_without_a_matrix(tmp_path: Path) -> None:
    results = [{**ONE, "img_size": size, "confusion": None} for size in ([32, 32], [48, 64])]
    written = write_scores(tmp_path, {"classes": ["cat", "dog"], "results": results})
    assert [path.name for path in written] == ["eval.json", "per_class-32x32.csv", "per_class-48x64.csv"]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"eval\.json.*--out"):
        write_scores(tmp_path / "file", ONE)
