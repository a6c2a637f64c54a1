"""From arguments to plans: the tables, presets, windows, batch sizes."""

import pytest
import torch

from sightline.bench.candidates import Plan
from sightline.bench.cases import SOFT_TOKENS, ModelCase, OpCase
from sightline.bench.cold_start import ColdStart
from sightline.bench.networks import Network
from sightline.bench.request import command_of, given_arguments, make_plans, measured_by, read_request
from sightline.util.errors import InputError

TINY = Network("tiny", "inline_deit_tiny", {"depths": 1, "embed_dims": 24, "num_heads": 2})


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)


def plans(**given: object) -> list[Plan]:
    return [plan for plan in make_plans(read_request(given)) if isinstance(plan, Plan)]


def labels(plan: Plan) -> list[str]:
    return [candidate.label for candidate in plan.candidates]


def test_tables(cuda: None) -> None:
    assert len(plans(what="ops")) == 20
    assert labels(plans(what="ops", device="cpu")[0]) == ["inline reference", "sdpa", "move"]
    assert [str(plan) for plan in plans(what="models", device="cpu")][:2] == [
        "inline_deit_tiny 224 forward float32",
        "inline_deit_tiny 224 train float32",
    ]
    large = [plan for plan in plans(what="models") if plan.case.name == "inline_deit_tiny 2048"]
    assert {(plan.mode, plan.batch) for plan in large} == {("forward", 8), ("train", 2)}


def test_goals(cuda: None) -> None:
    found = make_plans(read_request({"preset": "goals"}))
    names = [str(plan) for plan in found]
    assert len(names) == len(set(names)) == 20 + 10 + 16 + 1
    assert sum("compiled" in name for name in names) == 10
    assert "inline_cswin_tiny 224 train bfloat16" in names
    assert labels(found[0]) == ["inline triton", "sdpa", "move"]
    assert labels(found[20]) == ["inline_deit_tiny", "inline_deit_tiny none", "timm deit_tiny_patch16_224"]
    assert isinstance(found[-1], ColdStart)
    assert [plan.case.batch for plan in plans(what="models", preset="goals")][:10:2] == [512, 256, 128, 32, 8]


def test_goals_on_a_cpu() -> None:
    found = [str(plan) for plan in make_plans(read_request({"preset": "goals", "device": "cpu"}))]
    assert found == [f"inline_deit_tiny {size} forward float32" for size in (224, 512, 1024)]


def test_soft_goes_from_784_to_65536_tokens(cuda: None) -> None:
    found = plans(preset="soft")
    ops, models = ([plan for plan in found if isinstance(plan.case, kind)] for kind in (OpCase, ModelCase))
    assert [plan.case.tokens for plan in ops if plan.mode == "forward"] == [*range(784, 6273, 784), 16384, 36864, 65536]
    assert all(0.9 < plan.case.batch * plan.case.tokens / SOFT_TOKENS <= 1 for plan in ops)
    assert {plan.dtype for plan in ops} == {"bfloat16"}
    names = {"soft triton", "soft reference", "soft_norm triton", "soft_norm reference", "sdpa"}
    assert set(labels(ops[0])) == names
    assert {(plan.mode, plan.batch) for plan in models} == {("forward", 128), ("train", 64)}
    assert {plan.dtype for plan in models} == {"bfloat16", "tf32"}
    assert {label for plan in models for label in labels(plan)} == {
        "soft_tiny", "soft_tiny none", "timm pvt_v2_b1", "soft_norm_tiny",
    }  # fmt: skip
    assert len(models) == 2 * 2 * 2
    assert {len(plan.candidates) for plan in models} == {2, 6}
    assert {plan.dtype for plan in plans(preset="soft", dtype="float32")} == {"float32"}


def test_plain_calls(cuda: None) -> None:
    found = plans(preset="plain")
    assert all(plan.plain for plan in found)
    (step,) = (plan for plan in found if plan.case.name == "inline_deit_tiny 224" and plan.mode == "train")
    ways = [(False, ""), (True, ""), (True, "reduce-overhead")]
    assert [(each.compiled, each.compile_mode) for each in step.candidates] == [way for way in ways for _ in range(3)]
    assert {each.label for each in step.candidates} == {
        "inline_deit_tiny", "inline_deit_tiny none", "timm deit_tiny_patch16_224",
    }  # fmt: skip
    assert step.batch == 256
    assert [(plan.case.name, plan.batch) for plan in plans(preset="plain", only="latency")] == [
        ("inline_deit_tiny 224", 1), ("inline_deit_tiny 1024", 1),
    ]  # fmt: skip
    families = {plan.case.name: plan.batch for plan in plans(preset="plain", only="families")}
    assert families == {"inline_swin_tiny 224": 128, "inline_pvt_small 224": 128, "inline_cswin_tiny 224": 64,
                        "soft_tiny 224": 64}  # fmt: skip
    host = plans(preset="plain", only=["host"])
    assert [(plan.mode, labels(plan)) for plan in host] == [
        ("forward", ["inline module", "timm Attention"] * 2),
        ("forward", ["inline triton", "sdpa", "product"] * 2),
        ("forward+backward", ["inline triton", "sdpa", "product"] * 2),
    ]
    ops, *_, model = plans(preset="plain", only="peers")
    assert labels(ops) == ["inline triton", "linear triton", "sdpa", "flex_attention", "flash_bla"]
    assert labels(model) == ["inline_pvt_small", "timm efficientvit_b2"]
    keys = measured_by(found)
    assert len(keys) == len(set(keys))  # parts can be added to one file


def test_plain_calls_on_a_cpu_need_no_graphs() -> None:
    found = plans(preset="plain", device="cpu")
    assert not any(each.compile_mode for plan in found for each in plan.candidates)
    with pytest.raises(InputError, match=r"preset: plain .*peers on cpu"):
        plans(preset="plain", only="peers", device="cpu")


def test_ways_to_call_are_listed_once() -> None:
    request = read_request({"what": "models", "compile": "yes,all", "device": "cpu"})
    assert request.ways == ((True, ""), (False, ""), (True, "reduce-overhead"))
    wrong = [("compile", {"compile": "max"}), ("only", {"only": "x", "preset": "plain"}), ("only", {"only": "host"})]
    for name, given in wrong:
        with pytest.raises(InputError, match=f"^{name}: "):
            read_request({"what": "models", "device": "cpu", **given})


def test_windows() -> None:
    (plan,) = plans(what="models", model="inline_swin_tiny", mode="forward", window="7,14", device="cpu")
    assert labels(plan)[:4] == ["inline_swin_tiny w7", "inline_swin_tiny w14", "inline_swin_tiny softmax w7",
                                "inline_swin_tiny softmax w14"]  # fmt: skip
    assert labels(plan)[-1] == "timm swin_tiny_patch4_window7_224"
    assert [network.window for network in plan.candidates][:2] == [7, 14]
    assert plan.candidates[-1].window is None


def test_batches_follow_the_table_then_the_pixels(cuda: None) -> None:
    def batch(model: str, size: int, device: str) -> int:
        return plans(what="models", model=model, img_size=size, device=device)[0].batch

    assert batch("inline_deit_tiny", 384, "cuda") == 256
    assert batch("inline_swin_small", 448, "cuda") == 128
    assert batch("inline_deit_tiny", 4096, "cpu") == 1


def test_one_batch_size_or_one_per_size() -> None:
    with pytest.raises(ValueError, match=r"batch_size: .*2 for 1 sizes"):
        plans(what="models", model=TINY, batch_size="1,2", device="cpu")
    for given, batches in ((3, [3, 3]), ("2,2", [2, 2]), ([4, 1], [4, 1])):
        found = plans(what="models", model=TINY, mode="forward", img_size="32,64", batch_size=given, device="cpu")
        assert [plan.batch for plan in found] == batches


def test_the_command_of_a_report_measures_the_same() -> None:
    given = given_arguments({"what": "models", "model": [TINY, "inline_pvt_tiny"], "attention": [],
                             "img_size": [224, "32x48"], "baselines": (), "compile": "no", "budget": 9,
                             "device": None})  # fmt: skip
    words = (
        "sightline bench models --model tiny --model inline_pvt_tiny --img-size 224,32x48 --baselines off --budget 9"
    )
    assert command_of(given) == words
    request = read_request(given)
    assert [network.label for network in request.model] == ["tiny", "inline_pvt_tiny"]
    assert (request.img_size, request.compared(("none",))) == (((224, 224), (32, 48)), ())
