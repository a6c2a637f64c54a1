"""Under autocast a compiled model casts the weights of its linear layers together, and computes what it did."""

from collections import Counter

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch.func import functional_call
from torch.fx import GraphModule

from sightline import create_model
from sightline.models import casting

COPY = torch.ops.aten._foreach_copy.default


def tiny(**args: object) -> nn.Module:
    torch.manual_seed(0)
    model = create_model(
        "inline_deit_tiny", img_size=32, depths=(1,), embed_dims=(32,), num_heads=(2,), num_classes=5, **args
    )
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.bias, std=0.1)
    return model


class Graphs:
    """Counts the operators of the graphs that are compiled."""

    def __init__(self) -> None:
        self.forward: Counter[object] = Counter()
        self.backward: Counter[object] = Counter()
        torch._dynamo.reset()

    def compile(self, model: nn.Module) -> nn.Module:
        def count(counter: Counter[object]):  # type: ignore[no-untyped-def]
            def note(graph: GraphModule, _: object) -> GraphModule:
                counter.update(node.target for node in graph.graph.nodes)
                return graph

            return note

        backend = aot_autograd(fw_compiler=count(self.forward), bw_compiler=count(self.backward))
        return torch.compile(model, backend=backend, fullgraph=True)  # type: ignore[return-value]


def step(model: nn.Module, images: Tensor) -> tuple[Tensor, dict[str, Tensor | None]]:
    """Logits of autocast, and the gradients of the parameters."""
    inner = getattr(model, "_orig_mod", model)
    inner.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(images)
    logits.float().square().sum().backward()
    return logits.detach(), {name: value.grad for name, value in inner.named_parameters()}


def test_same_bits_as_casts_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """With blocks that are computed again in the backward pass too, which changes no bit."""
    monkeypatch.setattr(casting, "TOGETHER", 4)  # of ten
    model, images = tiny(), torch.randn(2, 3, 32, 32)
    hook = model.register_forward_hook(lambda *_: None)  # a hook sees one call, so autocast casts
    one_by_one = Graphs()
    expected, gradients = step(one_by_one.compile(model), images)
    assert one_by_one.forward[COPY] == 0
    hook.remove()
    for checkpointing in (False, True):
        model.set_grad_checkpointing(checkpointing)  # type: ignore[operator]
        graphs = Graphs()
        logits, together = step(graphs.compile(model), images)
        assert torch.equal(logits, expected)
        assert torch.equal(logits, step(model, images)[0])
        for name, gradient in gradients.items():
            assert torch.equal(together[name], gradient), name  # type: ignore[arg-type]
        assert (graphs.forward[COPY], graphs.backward[COPY]) == (3, 3)


def test_frozen_weights_get_no_gradient() -> None:
    model, graphs = tiny(), Graphs()
    for name, value in model.named_parameters():
        value.requires_grad_(name.startswith("head"))
    _, gradients = step(graphs.compile(model), torch.randn(2, 3, 32, 32))
    assert {name for name, value in gradients.items() if value is not None} == {"head.weight", "head.bias"}
    assert graphs.backward[torch.ops.aten.mm.default] == 1  # of head.weight


def test_without_gradients_no_function_of_autograd_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.11 breaks the graph at such a function then."""
    monkeypatch.setattr(casting, "_Cast", None)
    model, images = tiny(), torch.randn(2, 3, 32, 32)
    for mode in (torch.no_grad, torch.inference_mode):
        graphs = Graphs()
        with mode(), torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(graphs.compile(model)(images), model(images))
        assert graphs.forward[COPY] == 1


class Adapter(nn.Linear):
    """A linear layer of another class."""


def test_other_layers_and_other_precisions_are_left_alone() -> None:
    model = tiny()
    model.blocks[0].mlp.fc1.__class__ = Adapter  # type: ignore[union-attr, index]
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        graphs = Graphs()
        expected = model(images)
        assert torch.equal(graphs.compile(model)(images), expected)
        assert graphs.forward[COPY] == 1
    with torch.no_grad():
        graphs = Graphs()
        graphs.compile(model)(images)
        assert graphs.forward[COPY] == 0


def test_weights_of_a_caller() -> None:
    model, images = tiny(), torch.randn(2, 3, 32, 32)
    doubled = {"head.weight": model.head.weight.detach() * 2}

    def call(images: Tensor) -> Tensor:
        return functional_call(model, doubled, (images,))

    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        torch._dynamo.reset()
        assert torch.equal(torch.compile(call, backend="aot_eager")(images), call(images))
