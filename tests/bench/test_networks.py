"""Models as candidates: baselines, training steps, the check, compiling ahead."""

import random
import re
from dataclasses import replace

import pytest
import timm
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from sightline import backend
from sightline.bench import cost
from sightline.bench.candidates import Candidate, Plan, compile_apart
from sightline.bench.cases import Grid, ModelCase
from sightline.bench.clock import Work
from sightline.bench.cost import measure_cost
from sightline.bench.networks import Network, baselines
from sightline.bench.results import FAILED, OK, REJECTED, Row
from sightline.bench.run import Silent, compile_ahead, run_plan

CPU = torch.device("cpu")
TINY = Network("inline_deit_tiny", "inline_deit_tiny", {"depths": 1, "embed_dims": 24, "num_heads": 2})
CASE = ModelCase("inline_deit_tiny", (32, 48), 4)


def test_baselines() -> None:
    labels = [network.label for network in baselines(TINY, ("softmax", "none", "timm"))]
    assert labels == ["inline_deit_tiny softmax", "inline_deit_tiny none", "timm deit_tiny_patch16_224"]
    softmax = baselines(TINY, ("softmax",))[0]
    assert softmax.args == {**TINY.args, "attention": "softmax"}
    assert baselines(Network("resnet18", "resnet18"), ("softmax", "none", "timm")) == []
    assert [network.name for network in baselines(TINY, ("peer",))] == ["efficientvit_b1"]


class _NoMeta(nn.Conv2d):
    """Like a network of timm that names the device of its autocast, which torch 2.11 does not have for meta."""

    def forward(self, x: Tensor) -> Tensor:
        if x.is_meta:
            raise RuntimeError("unsupported scalarType")
        return super().forward(x)


def test_cost_of_a_network_that_cannot_run_on_the_meta_device() -> None:
    assert measure_cost(_NoMeta(3, 8, 3), (3, 6, 7)) == measure_cost(nn.Conv2d(3, 8, 3), (3, 6, 7))
    assert measure_cost(nn.Conv2d(3, 8, 3), (3, 6, 7)).macs == 3 * 8 * 9 * 4 * 5


def test_latency_is_of_one_image_that_is_waited_for() -> None:
    plan = Plan(CASE, "latency", "float32", (TINY,))
    assert TINY.prepare(plan, CPU).waits
    (row,) = run_plan(plan, CPU, 1e10, 1)
    assert (row.status, row.batch, row.mode) == (OK, 1, "latency")


def test_plain_rows_have_ratios_and_parameters() -> None:
    candidates = (TINY, *baselines(TINY, ("none",)))
    own, none = run_plan(Plan(CASE, "forward", "float32", candidates, plain=True), CPU, 1e10, 1)
    assert own.of_none == pytest.approx(none.call_ms / own.call_ms)
    assert (own.over_timm, none.of_none) == (None, None)
    assert own.params == sum(p.numel() for p in TINY.build((32, 48)).parameters())


def run(case: ModelCase, mode: str, *candidates: Candidate, dtype: str = "float32") -> list[Row]:
    return run_plan(Plan(case, mode, dtype, candidates), CPU, 1e10, 1)


@pytest.mark.parametrize("mode", ["forward", "forward+backward", "train"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_mode(mode: str, dtype: str) -> None:
    rows = run(CASE, mode, TINY, *baselines(TINY, ("softmax", "none")), dtype=dtype)
    assert [(row.status, row.note) for row in rows] == [(OK, "")] * 3
    assert {row.batch for row in rows} == {4 if mode == "forward" else 1}
    one = TINY.flops(Plan(ModelCase("x", (32, 48), 1), "forward", dtype, ())) / 1e9
    assert rows[0].gflop == pytest.approx(one * (4 if mode == "forward" else 3))
    for row in rows:
        assert row.images_per_s == pytest.approx(row.batch / row.call_ms * 1e3)


def test_a_training_step_trains_and_forward_backward_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    for mode, moves in (("train", True), ("forward+backward", False)):
        model = TINY.build((32, 32))
        monkeypatch.setattr(Network, "build", lambda self, size, model=model: model)
        before = [p.clone() for p in model.parameters()]
        (call,) = TINY.prepare(Plan(ModelCase("x", (32, 32), 8), mode, "float32", ()), CPU).calls
        assert model.training
        call()
        assert all(map(torch.equal, before, model.parameters())) != moves
        monkeypatch.undo()


def test_models_with_batch_norm_are_checked_as_in_use() -> None:
    soft = Network("soft_tiny", "soft_tiny", {"depths": (1, 1, 1, 1)})
    (row,) = run(ModelCase("soft_tiny", (64, 64), 8), "train", soft)
    assert (row.status, row.note) == (OK, "")


@pytest.mark.parametrize("mode", ["forward", "train"])
def test_wrong_and_failed_models_are_rows(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * (1 if backend.requested() == "torch" else 1.5)

    build = Network.build

    def build_wrong(self: Network, size: Grid) -> nn.Module:
        model = build(self, size)
        model.head.__class__ = Wrong
        return model

    monkeypatch.setattr(Network, "build", build_wrong)
    rows = run(CASE, mode, TINY, Network("bad", "inline_deit_tiny", {"embed_dims": 25}))
    assert [row.status for row in rows] == [REJECTED, FAILED]
    assert re.match(r"inline_deit_tiny 32x48, float32: the output is 0\.5 from", rows[0].note)
    assert "does not divide" in rows[1].note


def test_models_of_timm_with_and_without_a_size() -> None:
    for name in ("deit_tiny_patch16_224", "pvt_v2_b0"):
        model = Network(name, name).build((64, 64)).eval()
        assert model(torch.zeros(1, 3, 64, 64)).shape == (1, 1000)
    with pytest.raises(ValueError, match=r"resnet18: .*bogus"):
        Network("resnet18", "resnet18", {"bogus": 1}).build((64, 64))


def test_a_model_is_compiled_where_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[nn.Module] = []
    monkeypatch.setattr(torch, "compile", lambda model, **options: compiled.append(model) or model)
    for mode in ("forward", "train"):
        (row,) = run(CASE, mode, replace(TINY, compiled=True))
        assert (row.status, row.compiled) == (OK, True)
    assert len(compiled) == 2


def test_compiled_candidates_share_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each would check the guards of the others on every call."""
    modes: list[str | None] = []
    monkeypatch.setattr(torch, "compile", lambda what, **options: modes.append(options["mode"]) or what)
    steps: list[int] = []
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: steps.append(1))
    one, two = nn.Linear(2, 2), nn.Linear(2, 2)
    x = torch.ones(1, 2)
    expected = one(x)
    assert torch.equal(compile_apart(one)(x), expected)
    compile_apart(two, "reduce-overhead")(x)
    assert len({id(f.__code__) for f in (one.forward, two.forward, nn.Linear.forward)}) == 3
    assert modes == [None, "reduce-overhead"]
    assert steps == [1]


class Scaled:
    """The least work for a compiler; a factor that no run before this one compiled."""

    label, kind, compiled, compile_mode = "scaled", "model", True, ""

    def __init__(self) -> None:
        self.factor = random.random()

    def prepare(self, plan: Plan, device: torch.device) -> Work:
        x = torch.ones(4)
        scale = torch.compile(lambda x: x * self.factor, dynamic=False)
        return Work([lambda: scale(x)])

    def moved_bytes(self, plan: Plan) -> int:
        return 0

    def flops(self, plan: Plan) -> int:
        return 0


@pytest.mark.slow
def test_what_was_compiled_ahead_is_not_compiled_again() -> None:
    done: list[str] = []

    class Steps(Silent):
        def begin(self, label: str) -> None:
            done.append(label)

    plan = Plan(CASE, "forward", "float32", (Scaled(),))
    compile_ahead([plan], CPU, 2, Steps)
    assert done == ["scaled"]
    counters.clear()
    (row,) = run_plan(plan, CPU, 1e10, 1)
    assert (row.status, row.compiled) == (OK, True)
    assert counters["aot_autograd"]["autograd_cache_hit"] + counters["inductor"]["fxgraph_cache_hit"] > 0
    compile_ahead([plan], CPU, 1, Steps)
    assert len(done) == 1


@pytest.mark.parametrize("name", ["inline_deit_tiny", "inline_swin_tiny", "soft_tiny", "vit_tiny_patch16_224"])
def test_operations_that_are_not_run_again_are_counted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = timm.create_model(name)
    remembered = measure_cost(model, (3, 224, 224))
    monkeypatch.setattr(cost, "_key", lambda *args: None)
    assert measure_cost(model, (3, 224, 224)) == remembered
