"""A file that is being written is complete or absent."""

import os
from pathlib import Path

import pytest

from sightline.util.files import MOST_SHOWN, reason, write_atomic, write_text


def test_new_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.txt"
    for text in ("one\r\n", "two\n"):
        write_text(path, text)
        assert path.read_bytes() == text.encode()
    assert [item.name for item in path.parent.iterdir()] == ["a.txt"]


def test_the_mode_follows_the_umask(tmp_path: Path) -> None:
    def private(path: Path) -> None:
        path.unlink()
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))

    (tmp_path / "usual").touch()
    write_atomic(tmp_path / "written", private)
    assert (tmp_path / "written").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_a_failure_leaves_the_file_before(tmp_path: Path) -> None:
    def failing(path: Path) -> None:
        assert path.suffix == ".png"  # writers of images look at it
        path.write_text("half")
        raise OSError("full")

    path = tmp_path / "a.png"
    path.write_text("before")
    with pytest.raises(OSError, match="full"):
        write_atomic(path, failing)
    assert path.read_text() == "before"
    assert [item.name for item in tmp_path.iterdir()] == ["a.png"]


def test_leftovers_of_killed_processes_are_removed(tmp_path: Path) -> None:
    old, fresh, other = (tmp_path / name for name in (".a[1].txt.1.tmp.txt", ".a[1].txt.2.tmp", ".b.txt.3.tmp"))
    for left in (old, fresh, other):
        left.write_text("half")
    for left in (old, other):
        os.utime(left, (0, 0))
    write_text(tmp_path / "a[1].txt", "whole")
    assert {item.name for item in tmp_path.iterdir()} == {"a[1].txt", fresh.name, other.name}


def test_reasons_are_cut_between_words() -> None:
    assert reason(ValueError("no  such\nthing")) == "no such thing"
    assert reason(ValueError("word " * 60)).endswith("word word ...")
    assert reason(ValueError("x" * 300)) == f"{'x' * MOST_SHOWN} ..."
    assert reason(KeyError()) == "KeyError"
