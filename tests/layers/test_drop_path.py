"""Stochastic depth: what it does in training, and that blocks of all rates share compiled code."""

import copy
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from sightline.layers.drop_path import SharedDropPath, drop_path
from sightline.tasks.base import blocks_of
from tests.models.tiny import image, tiny


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_examples_are_left_out_and_the_others_scaled(dtype: torch.dtype) -> None:
    layer, x = SharedDropPath(0.25), torch.ones(4000, 3, 2, dtype=dtype)
    assert layer.train(False)(x) is x
    y = layer.train()(x)
    assert y.dtype == dtype
    assert torch.equal(y, y[:, :1, :1].expand_as(y))  # whole examples
    assert y.unique().tolist() == pytest.approx([0, 4 / 3], rel=0.01)
    assert (y == 0).float().mean().item() == pytest.approx(0.25, abs=0.03)
    assert not layer.state_dict()
    assert isinstance(drop_path(0.0), torch.nn.Identity)


@pytest.mark.parametrize(
    ("family", "depths", "compiled", "kinds"),
    [
        ("deit", {"depths": 5}, 5, 2),  # the first block has a rate of zero
        ("hybrid", {"conv_depths": (4, 0, 0, 0), "depths": (4, 1, 1, 1)}, 8, 3),  # convolutions, then attention
    ],
)
def test_blocks_share_compiled_code(family: str, depths: dict[str, Any], compiled: int, kinds: int) -> None:
    model = tiny(family, drop_path_rate=0.3, **depths).train()
    twin, x = copy.deepcopy(model), image(batch=2)
    counters.clear()
    for block in blocks_of(model)[:compiled]:
        block.compile(backend="aot_eager", dynamic=False)
    torch.manual_seed(1)
    got = model(x)
    assert counters["stats"]["unique_graphs"] == kinds
    torch.manual_seed(1)
    torch.testing.assert_close(got, twin(x), rtol=1e-4, atol=1e-4)
    torch.compiler.reset()
