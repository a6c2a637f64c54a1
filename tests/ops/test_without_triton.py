"""Without Triton the package imports, models run by the reference, and asking for a kernel is an error."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import sightline

SCRIPT = """
import sys
sys.modules["triton"] = None  # as if it were not installed
import torch
import sightline, timm
from sightline.ops import inline_attention
q = torch.randn(1, 12, 2, 16)
assert inline_attention(q, q, q).shape == q.shape
try:
    inline_attention(q, q, q, backend="triton")
except ValueError as error:
    assert "inline_attention" in str(error) and "Triton" in str(error), error
else:
    raise AssertionError("backend='triton' was accepted")
for name, depths in (("inline_deit_tiny", 1), ("soft_tiny", (1, 1, 1, 1))):
    model = timm.create_model(name, img_size=64, num_classes=3, depths=depths)
    model(torch.randn(1, 3, 64, 64)).sum().backward()
assert not any(name.startswith("triton") and module for name, module in sys.modules.items())
"""


@pytest.mark.slow
def test_models_run_without_triton() -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(sightline.__file__).parents[1])}
    run = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
