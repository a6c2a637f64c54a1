"""JSON and YAML files that are damaged or forged."""

import os
import time
from itertools import pairwise
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from sightline.util.documents import MAX_DEPTH, MAX_YAML, parse_yaml, read_json, read_object, read_yaml
from sightline.util.errors import FileError

LETTERS = "abcdefghij"
LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{after}: &{after} [{', '.join([f'*{before}'] * 9)}]\n" for before, after in pairwise(LETTERS)
)
MERGES = "a: &a {x: 1}\n" + "".join(
    f"{after}: &{after}\n  <<: [{', '.join([f'*{before}'] * 9)}]\n" for before, after in pairwise(LETTERS)
)


@pytest.mark.parametrize(
    "text",
    [LAUGHS, MERGES, "[" * 5000, "- " * 3000, "x" * (MAX_YAML + 1), "9" * 5000, "2001-99-99", "a: *b", "{", "\0"],
)
def test_forged_yaml(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    started = time.process_time()
    with pytest.raises(FileError, match=f"^{path}: ") as caught:
        read_yaml(path)
    assert time.process_time() - started < 5
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 500


def test_yaml_runs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"!!python/object/apply:os.mkdir ['{tmp_path / 'made'}']")
    with pytest.raises(FileError, match=str(path)):
        read_yaml(path)
    assert not (tmp_path / "made").exists()


def test_plain_yaml_is_read() -> None:
    assert parse_yaml("a: &a [1, 2]\nb: *a\nc:\n  <<: {d: 1}\n") == {"a": [1, 2], "b": [1, 2], "c": {"d": 1}}
    nested = "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1)
    assert parse_yaml(nested)


@pytest.mark.parametrize(
    "text", ["", "{", "[" * 10**5, "9" * 5000, "[1, null]", '"x"', '{"a": 1}', "\xff", "pipe", "loop", "folder"]
)
def test_forged_json(tmp_path: Path, text: str) -> None:
    path = tmp_path / "classes.json"
    if text == "pipe":
        os.mkfifo(path)
    elif text == "loop":
        path.symlink_to(path)
    elif text == "folder":
        path.mkdir()
    else:
        path.write_text(text, encoding="latin-1")
    with pytest.raises(FileError, match=f"^{path}: ") as caught:
        read_json(path, TypeAdapter(list[str]))
    assert len(str(caught.value)) < 500
    assert "\n" not in str(caught.value)


def test_an_object_that_may_be_missing(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    assert read_object(path) == {}
    path.write_text('{"a": [1]}')
    assert read_object(path) == {"a": [1]}
    path.write_text("[]")
    with pytest.raises(FileError, match=str(path)):
        read_object(path)
