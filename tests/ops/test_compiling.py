"""Every kernel compiles for a GPU, which the interpreter does not show, within the shared memory it should need."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import sightline
from sightline import backend


@pytest.mark.slow
@pytest.mark.parametrize("capability", [90])
def test_every_kernel_compiles(capability: int) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(Path(sightline.__file__).parents[1])
    command = [sys.executable, str(Path(__file__).with_name("compiling.py")), str(capability)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    for line in run.stdout.splitlines():
        row = json.loads(line)
        dtype = getattr(torch, row["dtype"].removeprefix("torch."))
        assert row["shared"] <= backend.shared_memory(row["operator"], dtype, row["head_dim"]), row
