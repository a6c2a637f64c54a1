"""Models as candidates: baselines, training steps, the check, plans."""

from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters

from sightline.bench.cases import ModelCase
from sightline.bench.check import MismatchError
from sightline.bench.networks import Network, baselines, build, check_job, make_job
from sightline.bench.plans import goal_plans, model_plans, op_plans
from sightline.bench.request import Request
from sightline.bench.results import FAILED, OK, REJECTED
from sightline.bench.run_models import ModelPlan, compile_ahead, model_gflop, run_plan

CPU = torch.device("cpu")
TINY = Network("inline_deit_tiny", "inline_deit_tiny", {"depths": 1, "embed_dims": 24, "num_heads": 2})
CASE = ModelCase("inline_deit_tiny", (32, 48), 4)


def test_baselines() -> None:
    labels = [network.label for network in baselines(TINY, ("softmax", "none", "timm"))]
    assert labels == ["inline_deit_tiny softmax", "inline_deit_tiny none", "timm deit_tiny_patch16_224"]
    softmax = baselines(TINY, ("softmax",))[0]
    assert softmax.args == {**TINY.args, "attention": "softmax"}
    assert baselines(Network("resnet18", "resnet18"), ("softmax", "none", "timm")) == []


@pytest.mark.parametrize("mode", ["forward", "forward+backward", "train"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_mode(mode: str, dtype: str) -> None:
    plan = ModelPlan(CASE, mode, dtype, False, (TINY, *baselines(TINY, ("softmax", "none"))))
    rows = run_plan(plan, CPU, 1)
    assert [(row.status, row.note) for row in rows] == [(OK, "")] * 3
    assert {row.batch for row in rows} == {4 if mode == "forward" else 1}
    for row in rows:
        assert row.images_per_s == pytest.approx(row.batch / row.call_ms * 1e3)
        assert row.gflop == pytest.approx(model_gflop(TINY, (32, 48)) * 4, rel=0.2) or mode != "forward"


def test_a_training_step_trains_and_forward_backward_does_not() -> None:
    for mode, moves in (("train", True), ("forward+backward", False)):
        job = make_job(TINY, (32, 32), 2, mode, "float32", False, CPU)
        before = job.logits()
        job.call()
        assert torch.equal(before, job.logits()) != moves


def test_models_with_batch_norm_are_checked_as_in_use() -> None:
    soft = Network("soft_tiny", "soft_tiny", {"depths": (1, 1, 1, 1)})
    (row,) = run_plan(ModelPlan(ModelCase("soft_tiny", (64, 64), 8), "train", "float32", False, (soft,)), CPU, 1)
    assert (row.status, row.note) == (OK, "")


def test_a_model_with_other_logits_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    job = make_job(TINY, (32, 32), 2, "forward", "float32", False, CPU)
    assert check_job(job, "tiny", "float32") < 1e-5
    job.expected = job.expected * 2
    with pytest.raises(MismatchError, match=r"tiny, float32: the logits are 0\.5 from"):
        check_job(job, "tiny", "float32")


def test_rejected_and_failed_models_are_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    from sightline.bench import run_models

    def reject(job: object, label: str, dtype: str) -> float:
        raise MismatchError(f"{label} is wrong")

    monkeypatch.setattr(run_models, "check_job", reject)
    bad = Network("bad", "inline_deit_tiny", {"embed_dims": 25})
    rows = run_plan(ModelPlan(CASE, "forward", "float32", False, (TINY, bad)), CPU, 1)
    assert [row.status for row in rows] == [REJECTED, FAILED]
    assert rows[0].note == "inline_deit_tiny 32x48 is wrong"
    assert "does not divide" in rows[1].note


def test_models_of_timm_with_and_without_a_size() -> None:
    for name in ("deit_tiny_patch16_224", "pvt_v2_b0"):
        model = build(Network(name, name), (64, 64)).eval()
        assert model(torch.zeros(1, 3, 64, 64)).shape == (1, 1000)
    with pytest.raises(ValueError, match=r"resnet18: .*bogus"):
        build(Network("resnet18", "resnet18", {"bogus": 1}), (64, 64))


@pytest.mark.slow
def test_compiled_models_match_and_can_be_compiled_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    plan = ModelPlan(CASE, "forward", "float32", True, (TINY,))
    done: list[str] = []
    compile_ahead([plan], CPU, 2, done.append)
    assert done == ["inline_deit_tiny"]
    counters.clear()
    (row,) = run_plan(plan, CPU, 1)
    assert (row.status, row.compiled) == (OK, True)
    assert counters["aot_autograd"]["autograd_cache_hit"] + counters["inductor"]["fxgraph_cache_hit"] > 0
    compile_ahead([plan], CPU, 1, done.append)
    assert len(done) == 1


def test_plans_of_the_tables() -> None:
    cuda, cpu = Request(torch.device("cuda"), ("bfloat16",)), Request(CPU, ("float32",))
    assert len(op_plans(cuda)) == 20
    assert [e.name for e in op_plans(cpu)[0].candidates] == ["inline reference", "sdpa", "move"]
    assert [str(plan) for plan in model_plans(cpu)][:2] == [
        "inline_deit_tiny 224 forward float32",
        "inline_deit_tiny 224 train float32",
    ]
    assert {plan.case.batch for plan in model_plans(cuda) if plan.case.name == "inline_deit_tiny 2048"} == {8}


def test_plans_of_the_goals() -> None:
    plans = goal_plans(("ops", "models"), torch.device("cuda"), ("bfloat16",))
    names = [str(plan) for plan in plans]
    assert sum("compiled" in name for name in names) == 10
    assert "inline_cswin_tiny 224 train bfloat16" in names
    assert [e.name for e in plans[0].candidates] == ["inline triton", "sdpa", "move"]
    assert [str(p) for p in goal_plans(("ops", "models"), CPU, ("float32",))] == [
        f"inline_deit_tiny {size} forward float32" for size in (224, 512, 1024)
    ]
    assert goal_plans(("ops",), CPU, ("float32",)) == []


def test_windows() -> None:
    swin = Network("inline_swin_tiny", "inline_swin_tiny")
    (plan,) = model_plans(Request(CPU, ("float32",), ("forward",), networks=(swin,), windows=(7, 14)))
    labels = [network.label for network in plan.networks]
    assert labels[:4] == ["inline_swin_tiny w7", "inline_swin_tiny w14", "inline_swin_tiny softmax w7",
                          "inline_swin_tiny softmax w14"]  # fmt: skip
    assert labels[-1] == "timm swin_tiny_patch4_window7_224"
    assert [network.window for network in plan.networks][:2] == [7, 14]
    assert plan.networks[-1].window is None


def test_one_batch_size_or_one_per_size() -> None:
    with pytest.raises(ValueError, match=r"batch_size: .*2 for 1 sizes"):
        model_plans(Request(CPU, ("float32",), networks=(TINY,), batches=(1, 2)))
    plans = model_plans(
        Request(CPU, ("float32",), ("forward",), networks=(TINY,), sizes=((32, 32), (64, 64)), batches=(3,))
    )
    assert [plan.case.batch for plan in plans] == [3, 3]
