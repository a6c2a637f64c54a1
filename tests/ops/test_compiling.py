"""Kernels compile for every GPU, which the interpreter does not show, within its shared memory and registers."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import sightline

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("compiling")]  # one run of the compiler for all
CAPABILITIES = (80, 86, 90, 100, 120)  # 8.9 has the instructions and the shared memory of 8.6


@cache
def _compiled() -> list[dict[str, Any]]:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(Path(sightline.__file__).parents[1])
    command = [sys.executable, str(Path(__file__).with_name("compiling.py")), *map(str, CAPABILITIES)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "Traceback" not in run.stderr, run.stderr[-3000:]
    return [json.loads(line) for line in run.stdout.splitlines()]


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_kernels_fit(capability: int) -> None:
    rows = [row for row in _compiled() if row["capability"] == capability]
    assert len(rows) >= 8
    assert [row for row in rows if row["problem"]] == []
