"""Layers by kernels next to layers by torch."""

import pytest
import torch

from sightline import backend
from sightline.layers import Attention
from sightline.layers.core import Grid
from sightline.ops.common.launching import forget

from ..ops.brute_force import assert_close
from ..ops.cases import DEVICE


def check_kernels(layer: Attention, grid: Grid, monkeypatch: pytest.MonkeyPatch, prefix: int = 1) -> None:
    """Through Triton's interpreter on a CPU, where `triton` never falls back: the output and gradients of torch."""
    layer = layer.to(DEVICE)
    x = torch.randn(2, prefix + grid[0] * grid[1], layer.core.dim, device=DEVICE, requires_grad=True)
    leaves, found = [x, *layer.parameters()], []
    monkeypatch.setattr(backend, "requested", lambda: "triton" if found else "torch")
    for _ in range(2):
        out = layer(x, grid, prefix)
        found.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    forget()
    for one, other in zip(*found, strict=True):
        assert_close(other, one, 1e-4)
