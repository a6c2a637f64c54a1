"""Models as torch's tracers see them, and images that are none."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.backends.debugging import aot_eager
from torchvision.models.feature_extraction import create_feature_extractor

from sightline.layers.position import PositionTable
from sightline.models.linearize import PLAIN
from sightline.util.errors import InputError

from .tiny import FAMILIES, assert_close, gradients, image, tiny

PATTERNS = [(family, {}) for family in FAMILIES] + [
    ("deit", {"attention": PLAIN}),
    ("deit", {"attention": "inline(softmax_prefix=true)"}),
]


@pytest.mark.parametrize(("family", "options"), PATTERNS)
def test_jit_trace(family: str, options: dict[str, Any]) -> None:
    model, x = tiny(family, **options), image()
    traced = torch.jit.trace(model, x)
    for other in (image(), torch.randn(1, *x.shape[1:]), torch.randn(3, 3, x.shape[2] + 32, x.shape[3])):
        assert_close(traced(other), model(other))


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_compiled_positions_at_changing_grids(mode: str) -> None:
    """The gradient of resampled position tables, with sizes that the compiler does not know."""
    table = PositionTable((4, 4), 3, mode=mode)

    def loss(x: Tensor) -> Tensor:
        return (x.flatten(2).transpose(1, 2) * table((x.shape[2], x.shape[3]))).sum()

    compiled = torch.compile(loss, backend="aot_eager", dynamic=True)
    for size in ((6, 5), (9, 7)):
        x = torch.randn(1, 3, *size)
        (got,), (want,) = (torch.autograd.grad(call(x), [table.weight]) for call in (compiled, loss))
        assert_close(got, want)


@pytest.mark.slow
def test_compiled_training_at_changing_resolutions() -> None:
    """A class token, a resampled table and one block, in one graph; pyramids have more of the same."""
    model, graphs = tiny("deit", depths=1), 0

    def count(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        nonlocal graphs
        graphs += 1
        return aot_eager(graph, inputs)

    compiled = torch.compile(model, backend=count)
    for size in ((96, 112), (112, 144)):
        x = image(*size)
        torch._dynamo.mark_dynamic(x, (2, 3))
        for got, want in zip(gradients(compiled, x), gradients(model, x), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5 * (1 + want.abs().max().item()))
    assert graphs == 1


@pytest.mark.parametrize(
    ("training", "wanted"),
    [(False, [1, 2, 2, 3, 3]), (True, [1, 2, 3, 4, 4])],  # one size, any size, (in training, another batch,) its own
)
def test_own_size_gets_a_graph_of_its_own(training: bool, wanted: list[int]) -> None:
    model, graphs = tiny("deit", depths=1).requires_grad_(training), 0

    def count(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        nonlocal graphs
        graphs += 1
        return graph

    compiled, made = torch.compile(model, backend=count), []
    for batch, size in ((2, 96), (3, 112), (4, 128), (2, model.img_size[0]), (3, 160)):
        x = torch.randn(batch, 3, size, size)
        with torch.set_grad_enabled(training):
            assert_close(compiled(x), model(x))
        made.append(graphs)
    assert made == wanted


@pytest.mark.parametrize(
    ("images", "shown"),
    [
        (None, "NoneType"),
        ([[1.0]], "list"),
        (torch.zeros(1, 3, 64, 64, dtype=torch.uint8), "torch.uint8"),
        (torch.zeros(1, 3, 64, 64, dtype=torch.complex64), "torch.complex64"),
        (torch.zeros(1, 3, 64, 64).to_sparse(), "sparse"),
        (torch.nested.nested_tensor([torch.zeros(3, 64, 64)]), "nested"),
        (torch.zeros(1, 3, 0, 64), "(1, 3, 0, 64)"),
        (torch.zeros(3, 64, 64), "(3, 64, 64)"),
        (torch.zeros(1, 1, 64, 64), "(1, 1, 64, 64)"),
    ],
    ids=str,
)
def test_what_is_not_a_batch_of_images_is_rejected(images: Tensor | None, shown: str) -> None:
    model = tiny("deit", depths=1)
    for call in (model, model.forward_intermediates):
        with pytest.raises(InputError, match="images") as caught:
            call(images)
        assert shown in str(caught.value)


@pytest.mark.parametrize("family", ["deit", "swin"])
def test_quantized_by_torchao(family: str) -> None:
    quantization = pytest.importorskip("torchao.quantization", reason="needs torchao")
    wide = {"embed_dims": 32} if family == "deit" else {"embed_dims": 32, "depths": (1, 1, 1, 1)}
    model, x = tiny(family, **wide), image()
    want = model(x)
    quantization.quantize_(model, quantization.Int8DynamicActivationInt8WeightConfig())
    assert_close(model(x), want, 0.1)


def test_the_feature_extractor_of_torchvision_names_what_to_use() -> None:
    with pytest.raises(InputError, match="features_only"):
        create_feature_extractor(tiny("deit", depths=1), ["blocks.0"])
