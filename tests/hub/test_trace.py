"""Graphs of torch.export for any batch and size, and the parts that make them possible."""

from typing import Any

import pytest
import torch
from torch import nn

from sightline.hub.trace import Graph, MeanPool, Wide, in_half, mean_matrix, trace, traceable
from sightline.layers.window_attention import WindowAttention
from sightline.ops.inline.projected import inline_from_tokens
from tests.models.tiny import assert_close, image, tiny


@pytest.mark.parametrize("target", [1, 2, 3, 6])
@pytest.mark.parametrize("size", [(6, 6), (7, 4), (5, 13)], ids=str)
def test_pooling_by_matrices(size: tuple[int, int], target: int) -> None:
    x = torch.randn(2, 3, *size)
    assert_close(MeanPool(target)(x), nn.AdaptiveAvgPool2d(target)(x), 1e-6)
    assert_close(mean_matrix(size[0], target).sum(1), torch.ones(target), 1e-6)


def test_pooling_is_restored() -> None:
    pool = nn.AdaptiveAvgPool2d((2, 3))
    model = nn.Sequential(nn.Identity(), pool)
    with traceable(model):
        assert isinstance(model[1], MeanPool)
    assert model[1] is pool


def test_half_keeps_norms_wide() -> None:
    model = tiny("swin")
    half = in_half(model)
    wide = [module for module in half.modules() if isinstance(module, Wide)]
    assert len(wide) == sum(isinstance(module, nn.LayerNorm) for module in model.modules())
    norms = {id(p) for module in wide for p in module.parameters()}
    assert {p.dtype for p in half.parameters() if id(p) in norms} == {torch.float32}
    assert {p.dtype for p in half.parameters() if id(p) not in norms} == {torch.float16}
    x = image()
    assert_close(Graph(model, half=True)(x)[0], model(x), 2e-2)
    assert next(model.parameters()).dtype == torch.float32


@pytest.mark.parametrize(
    "family", ["deit", *(pytest.param(family, marks=pytest.mark.slow) for family in ("cswin", "soft"))]
)
def test_a_graph_for_any_batch_and_size(family: str) -> None:
    """Of swin and pvt, test_exporting.py makes files for any size.

    One stage of those before the last, which differ in numbers only, and the last, with whole maps.
    """
    few: dict[str, Any] = {"depths": 1} if family == "deit" else {"depths": (0, 1, 0, 1)}
    if family == "soft":
        few["attention"] = "soft(iterations=1),soft(iterations=1),soft(iterations=1),softmax"
    model = tiny(family, **few)
    program = trace(Graph(model), (3, 64, 64), ("batch", "height", "width"), torch.device("cpu"))
    run = program.module()
    for shape in ((1, 64, 64), (3, 65, 90), (2, 33, 200)):
        x = image(*shape[1:], batch=shape[0])
        assert_close(run(x)[0], model(x))


def test_a_graph_starts_from_the_tokens_as_the_model_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights that torch.export shows are no plain tensors; the graph needs no projection to queries and keys."""
    calls: list[torch.Size] = []

    def counted(x: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        calls.append(x.shape)
        return inline_from_tokens(x, *args, **options)

    monkeypatch.setattr("sightline.layers.mechanisms.inline.inline_from_tokens", counted)
    model = tiny("deit", depths=1, img_size=256)  # 256 tokens
    trace(Graph(model), (3, 256, 256), (), torch.device("cpu"))
    assert len(calls) == 1
    trace(Graph(model, layers=True), (3, 256, 256), (), torch.device("cpu"))  # the projection is a layer in int8
    assert len(calls) == 1


class OneLayer(nn.Module):
    """Windows of 7 on a map of patches."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 32, 32, padding=31)
        self.attn = WindowAttention(8, 1, "inline", window=7, shift=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x)
        return self.attn(x.flatten(2).mT, x.shape[2:]).mean(1)


def test_windows_wider_than_the_maps_of_training() -> None:
    """The example for torch.export has more than one window, whatever the size of training."""
    model = OneLayer().eval()
    run = trace(Graph(model), (3, 64, 64), ("height",), torch.device("cpu")).module()
    for height in (64, 300):
        x = image(height, 64, batch=1)
        assert_close(run(x)[0], model(x), 1e-5)


@pytest.mark.parametrize("attention", ["linformer", "soft(iterations=2)"])
def test_tables_and_landmarks_are_for_any_size(attention: str) -> None:
    model = tiny("deit", depths=1, attention=attention)
    run = trace(Graph(model), (3, 64, 64), ("height", "width"), torch.device("cpu")).module()
    x = image(65, 200, batch=1)
    assert_close(run(x)[0], model(x))
