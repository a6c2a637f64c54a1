"""Kernels compile for the GPUs with least shared memory, within it and their registers, which the interpreter does not
show. `make test-triton` compiles them for all others, which takes minutes."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import sightline

pytestmark = pytest.mark.slow
CAPABILITIES = (86,)


def _compiled() -> list[dict[str, Any]]:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(Path(sightline.__file__).parents[1])
    command = [sys.executable, str(Path(__file__).with_name("compiling.py")), *map(str, CAPABILITIES)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "Traceback" not in run.stderr, run.stderr[-3000:]
    return [json.loads(line) for line in run.stdout.splitlines()]


def test_kernels_fit() -> None:
    rows = _compiled()
    counts = Counter(row["capability"] for row in rows)
    assert set(counts) == set(CAPABILITIES)
    assert min(counts.values()) >= 7
    assert [row for row in rows if row["problem"]] == []
