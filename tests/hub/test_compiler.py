"""The C++ compiler of packages: one that does not copy the standard library into them."""

import shutil
import subprocess
from pathlib import Path

import pytest

from sightline.hub.compiler import choose_compiler, links_shared

GXX = shutil.which("g++")
pytestmark = pytest.mark.skipif(GXX is None, reason="needs g++: apt install g++")


@pytest.fixture
def static(tmp_path: Path) -> str:
    """A compiler that has no shared library: its own folder comes first, and has the archive alone."""
    archive = subprocess.check_output([str(GXX), "-print-file-name=libstdc++.a"], text=True).strip()
    (tmp_path / "libstdc++.a").symlink_to(archive)
    script = tmp_path / "g++"
    script.write_text(f'#!/bin/sh\nexec {GXX} -B{tmp_path}/ "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    return str(script)


def test_a_copy_of_the_library_is_noticed(static: str) -> None:
    assert links_shared(str(GXX))
    assert not links_shared(static)


def test_another_compiler_takes_its_place(static: str) -> None:
    assert choose_compiler([static]) == "g++"
    assert choose_compiler([static], [static]) is None
    assert choose_compiler([str(GXX)]) is None


@pytest.mark.parametrize("command", ["no-such-compiler", "false", 'g++ "', ""])
def test_no_compiler(command: str) -> None:
    assert not links_shared(command)
