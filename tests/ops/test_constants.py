"""Graphs of torch.compile pass kernels a number that equals 1 as a constant, which has no methods."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_kernels_take_constants_for_numbers() -> None:
    """In a process of its own, without Triton's interpreter; `make test-triton` compiles them as well."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, str(Path(__file__).with_name("compiling.py")), "--parse", "90"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
