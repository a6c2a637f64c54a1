"""Settings of every test: a fixed seed, one torch thread for each worker of pytest-xdist, and without a GPU Triton's
interpreter, which must be chosen before the kernels are imported."""

import os

import pytest
import torch

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests marked `gpu` without a GPU."""
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a GPU"))


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
