"""Models as modules: repeatable, copied, saved, compiled, exported, traced."""

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from timm.models import get_notrace_functions, get_notrace_modules
from torchvision.models.feature_extraction import create_feature_extractor, get_graph_node_names

from .tiny import CLASSES, FAMILIES, assert_close, every_family, fresh, gradients, image, tiny


@every_family
def test_evaluation_is_deterministic(family: str) -> None:
    model, x = tiny(family), image()
    assert torch.equal(model(x), model(x))


@every_family
def test_an_image_does_not_depend_on_its_batch(family: str) -> None:
    model, x = tiny(family), image(97, 64, batch=3)
    x[1] *= 4
    together = model(x)
    for i in range(3):
        assert_close(model(x[i : i + 1]), together[i : i + 1])


@every_family
def test_memory_format_does_not_matter(family: str) -> None:
    model, x = tiny(family), image(97, 64)
    assert_close(model(x.to(memory_format=torch.channels_last)), model(x))
    wide = torch.randn(2, 3, 97, 128)
    assert_close(model(wide[..., ::2]), model(wide[..., ::2].contiguous()))


@every_family
def test_no_image_at_all(family: str) -> None:
    assert tiny(family)(image(97, 64, batch=0)).shape == (0, CLASSES)


@every_family
def test_copies_and_pickles(family: str) -> None:
    model, x = tiny(family), image()
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(x), model(x))
        with torch.no_grad():
            twin.head.bias += 1
        assert not torch.equal(twin(x), model(x))
        twin.load_state_dict(model.state_dict())
        assert torch.equal(twin(x), model(x))


@every_family
def test_state_dict_round_trip(family: str, tmp_path: Path) -> None:
    model, x = tiny(family), image()
    torch.save(model.state_dict(), tmp_path / "state.pth")
    other = fresh(family, checkpoint_path=str(tmp_path / "state.pth")).eval()
    assert list(other.state_dict()) == list(model.state_dict())
    assert torch.equal(other(x), model(x))


@every_family
def test_device_and_dtype_of_creation(family: str) -> None:
    assert all(t.is_meta for t in fresh(family, device="meta").state_dict().values())
    half = fresh(family, dtype=torch.bfloat16)
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}
    with torch.device("meta"):
        assert all(p.is_meta for p in fresh(family).parameters())


# SOFT++ has the modules of SOFT; tests/layers/test_mechanisms.py compiles and exports its attention.
DISTINCT = pytest.mark.parametrize("family", [family for family in FAMILIES if family != "soft_norm"])
# Stages before the last differ in numbers only; windows are shifted in every second block.
SHORT: dict[str, dict[str, Any]] = {
    "deit": {"depths": 1},
    "pvt": {"depths": (0, 1, 0, 1)},
    "swin": {"depths": (0, 2, 0, 1)},
    "cswin": {"depths": (0, 1, 0, 1)},
    "hybrid": {"depths": (0, 1, 0, 1)},
    "soft": {
        "depths": (0, 1, 0, 1),
        "attention": "soft(iterations=1),soft(iterations=1),soft(iterations=1),softmax",
    },
}


@pytest.mark.slow
@DISTINCT
def test_compiled_in_one_graph(family: str) -> None:
    """Captured whole, with the same results; every kind of attention goes through AOTAutograd in tests/layers."""
    model, x = tiny(family, **SHORT[family]), image(97, 64)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    for got, want in zip(gradients(compiled, x), gradients(model, x), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5 * (1 + want.abs().max().item()))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["deit", "hybrid"])
def test_exported(family: str) -> None:
    """As it is; tests/hub exports the others for any size."""
    model, x = tiny(family, **SHORT[family]), image(97, 64, batch=1)
    program = torch.export.export(model, (x,))
    assert_close(program.module()(x), model(x))


@pytest.mark.slow
@every_family
def test_traced_by_fx(family: str) -> None:
    model, x = tiny(family), image(97, 64)
    options = {
        "leaf_modules": get_notrace_modules(),
        "autowrap_functions": get_notrace_functions(),
        "param_shapes_constant": True,
    }
    _, nodes = get_graph_node_names(model, tracer_kwargs=options)
    inner = next(node for node in nodes if node.endswith("mlp.fc2"))
    graph = create_feature_extractor(model, [inner, nodes[-1]], tracer_kwargs=options)
    assert torch.equal(graph.eval()(x)[nodes[-1]], model(x))
    smaller = image(32, 64, batch=1)
    assert torch.equal(graph(smaller)[nodes[-1]], model(smaller))
    captured = []
    model.get_submodule(inner).register_forward_hook(lambda _m, _i, out: captured.append(out))
    model(x)
    assert torch.equal(graph(x)[inner], captured[0])
