"""Graphs of the operators for any batch and any size of a map, traced as on a GPU; no kernel runs."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim

from sightline import backend
from sightline.layers.attention import Attention
from sightline.ops import inline_attention, linear_attention, soft_attention
from sightline.ops.headwise_conv import headwise_conv
from sightline.ops.patches import gather_patches

HEADS, DIM = 2, 16
DEVICE = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def _h200(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = backend.Limits(9, 0, backend.LARGE)
    monkeypatch.setattr(backend, "device_limits", lambda index: limits)
    monkeypatch.setattr(backend, "_widest", {})
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)


class Mixed(nn.Module):
    """A function of tokens (B, h * w, H, D) and their grid, on maps (B, h, w, C)."""

    def __init__(self, mix: Callable[[Tensor, tuple[int, int]], Tensor]) -> None:
        super().__init__()
        self.mix = mix

    def forward(self, maps: Tensor) -> Tensor:
        tokens = maps.flatten(1, 2)
        mixed = self.mix(tokens.unflatten(2, (HEADS, DIM)), (maps.shape[1], maps.shape[2]))
        return mixed.flatten(2).unflatten(1, maps.shape[1:3])


def _weights(*shape: int) -> Tensor:
    return torch.empty(shape, device=DEVICE)


def _layer(x: Tensor, grid: tuple[int, int]) -> Tensor:
    with DEVICE:
        layer = Attention(HEADS * DIM, HEADS, "inline")
    return layer(x.flatten(2), grid).unflatten(2, (HEADS, DIM))


OPERATORS: dict[str, Callable[[Tensor, tuple[int, int]], Tensor]] = {
    "inline": lambda x, grid: inline_attention(x, x, x),
    "residual": lambda x, grid: inline_attention(x, x, x, residual=_weights(x.shape[0], 32, 3, 3), grid=grid),
    "line": lambda x, grid: inline_attention(x, x, x, residual=_weights(x.shape[0], 32, 3, 3), grid=(1, x.shape[1])),
    "layer": _layer,
    "linear": lambda x, grid: linear_attention(x, x, x),
    "soft": lambda x, grid: soft_attention(x, x, x[:, :9], normalized=True, iterations=2),
    "conv": lambda x, grid: headwise_conv(x, _weights(HEADS, 1, 3, 3), grid),
    "conv with an addend": lambda x, grid: headwise_conv(x, _weights(HEADS, 1, 3, 3), grid, add=x * 2),
    "patches": lambda x, grid: (
        x + gather_patches(x.flatten(2), grid, (2, 2))[:, :1, : HEADS * DIM].unflatten(2, (HEADS, DIM))
    ),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_any_batch_and_size(name: str) -> None:
    limits = {"batch": (1, 65535), "height": (2, 2048), "width": (2, 2048)}
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        maps = torch.empty(3, 35, 67, HEADS * DIM, device=DEVICE)
        program = torch.export.export(
            Mixed(OPERATORS[name]), (maps,), strict=False, prefer_deferred_runtime_asserts_over_guards=True,
            dynamic_shapes=({axis: Dim(key, min=a, max=b) for axis, (key, (a, b)) in enumerate(limits.items())},),
        )  # fmt: skip
    found = sorted((int(r.lower), int(r.upper)) for r in program.range_constraints.values())
    assert found == sorted(limits.values())  # no size of the example got into the graph
    assert any("sightline" in str(node.target) or "triton" in str(node.target) for node in program.graph.nodes)
