"""The goals of this project and the figures of the public code, which `tools` puts next to the results of a run."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sightline.bench.cases import MODEL_CASES, OP_CASES
from sightline.bench.results import REJECTED, Row, result_files

from .test_results import full_report, model, op, plain_report

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import check_goals
from tables.goals import evaluate
from tables.plain_goals import evaluate_plain
from tables.published import PUBLIC_MODELS, PUBLIC_OPS, public_figure, recorded


def test_goals() -> None:
    report, public = full_report(), "speedup over the public model, measured elsewhere"
    found = {(g.number, g.what, g.case): (g.measured, g.met) for g in evaluate(report.rows, report.findings)}
    assert found[1, "ratio to the floor", "deit_tiny_224 forward"] == ("1.50x", True)
    assert found[1, "ratio to the floor", "deit_tiny_224 forward+backward"] == ("3.00x", False)
    assert found[1, "ratio to the floor", "deit_tiny_384 forward"] == ("5.00x", False)
    assert found[1, "faster than SDPA", "deit_tiny_224 forward"] == ("3.00x", True)
    assert found[1, "speedup over the public forward, measured elsewhere", "deit_tiny_224 forward"] == ("21.5x", True)
    assert found[1, "speedup over the public forward, measured elsewhere", "deit_tiny_384 forward"] == ("9.6x", False)
    assert found[2, "of the network without attention", "inline_deit_tiny 224 forward compiled"] == ("95.0%", True)
    assert found[2, "speedup over timm's deit_tiny", "inline_deit_tiny 224 forward compiled"] == ("2.00x", True)
    assert found[2, "speedup over timm's deit_tiny", "inline_deit_tiny 1024 forward compiled"] == ("2.00x", False)
    assert found[2, public, "inline_deit_tiny 224 forward"] == (
        "2.45x",
        True,
    )
    assert found[4, "first call", "inline forward"] == ("4 s", False)
    assert found[4, "batches", "inline"] == ("0 of 8", True)
    assert len(found) == 15


def soft_op(candidate: str, tokens: int, ms: float, mib: float) -> Row:
    return Row(
        "op", f"soft_{tokens}", candidate, "forward+backward", False, "bfloat16", "cuda", 401408 // tokens, tokens, 2,
        32, graph_ms=ms, call_ms=ms, memory_mib=mib,
    )  # fmt: skip


def test_goals_of_soft() -> None:
    """A tensor of 401,408 tokens with 64 channels in bfloat16 is 49 MiB."""
    rows = [soft_op("soft triton", 784, 0.3, 400), soft_op("sdpa", 784, 0.2, 300)]
    rows += [soft_op("soft triton", 3136, 0.4, 490), soft_op("sdpa", 3136, 5.0, 300)]
    rows += [soft_op("soft_norm triton", 3136, 0.4, 400), soft_op("soft_norm triton", 65536, 0.6, 400)]
    kind = ("soft_tiny 224", "soft_tiny")
    rows += [Row("model", *kind, "forward", True, "bfloat16", "cuda", 128, graph_ms=4.0, call_ms=5.0)]
    rows += [Row("model", *kind, "train", True, "tf32", "cuda", 64, graph_ms=10.0, call_ms=20.0)]
    rows += [Row("model", *kind, "train", False, "tf32", "cuda", 64, graph_ms=10.0, call_ms=20.0)]
    goals = evaluate(rows)
    assert {goal.number for goal in goals} == {3}
    found = {(g.what, g.case): (g.measured, g.met) for g in goals}
    mode = "tokens, forward+backward bfloat16"
    assert found["memory, in tensors like q", f"soft, 784 {mode}"] == ("8.2", True)
    assert found["memory, in tensors like q", f"soft, 3,136 {mode}"] == ("10.0", False)
    assert found["faster than SDPA", f"soft, 3,136 {mode}"] == ("12.5x", True)
    assert ("faster than SDPA", f"soft, 784 {mode}") not in found
    assert found["time per token, relative to 3,136 tokens", f"soft_norm, 65,536 {mode}"] == ("1.53x", False)
    public = "speedup over the public model (TF32), measured elsewhere, by"
    assert found[f"{public} graph replay", "soft_tiny 224 forward compiled bfloat16"] == ("10.56x", True)
    assert found[f"{public} plain calls", "soft_tiny 224 forward compiled bfloat16"] == ("8.45x", False)
    assert found[f"{public} graph replay", "soft_tiny 224 train compiled tf32"] == ("7.80x", True)
    assert len(found) == 4 + 2 + 1 + 4


def test_what_was_not_measured_is_not_met() -> None:
    row = op("inline triton", 1.0)
    row.status, row.graph_ms, row.call_ms = REJECTED, None, None
    (goal,) = evaluate([row])
    assert (goal.measured, goal.met) == (REJECTED, False)


def test_goal_five_is_inference_on_a_cpu() -> None:
    rows = [model("inline_deit_tiny", 10.0, compiled=False), model("inline_deit_tiny none", 9.0, compiled=False)]
    for row in rows:
        row.device, row.dtype = "cpu", "float32"
    (goal,) = evaluate(rows)
    assert (goal.number, goal.measured, goal.met) == (5, "90.0%", False)


def test_the_tool_prints_what_is_met(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = result_files(tmp_path, "x")
    full_report(files).write()
    assert check_goals.main([str(files[0])]) == 1
    shown = capsys.readouterr().out
    assert "10 of 15 met" in shown
    assert "public ms" in shown


def test_there_are_public_figures_for_every_case() -> None:
    assert OP_CASES.keys() == PUBLIC_OPS.keys()
    assert {case.name for case in MODEL_CASES} == PUBLIC_MODELS.keys()


def test_public_figures_are_only_given_for_what_was_measured() -> None:
    assert recorded("op", "deit_tiny_224", "forward", False) == 0.644
    assert recorded("op", "deit_tiny_224", "forward", True) == 0.242
    assert recorded("op", "deit_tiny_224", "forward+backward", True) is None
    assert recorded("op", "2,6,32,9", "forward", False) is None
    assert recorded("model", "inline_deit_tiny 224", "train", False) == 2015
    assert recorded("model", "inline_deit_tiny 224", "train", True) is None
    assert recorded("model", "soft_tiny 224", "forward+backward", False) is None


def test_public_figures_are_shown_next_to_the_same_kind_of_run_only() -> None:
    row = Row("model", "inline_deit_tiny 224", "inline_deit_tiny", "forward", False, "bfloat16", "cuda", 512)
    assert public_figure(row) == 20899
    for change in ({"device": "cpu"}, {"dtype": "float32"}, {"candidate": "inline_deit_tiny none"}):
        assert public_figure(replace(row, **change)) is None
    soft = replace(row, case="soft_tiny 224", candidate="soft_tiny")
    assert public_figure(soft) is None
    assert public_figure(replace(soft, dtype="tf32")) == 3029


def test_goals_of_plain_calls() -> None:
    goals = evaluate_plain([plain_report()])
    found = {(g.number, g.what, g.case): (g.measured, g.met) for g in goals}
    assert len(found) == len(goals) == 4 + 3 + 1 + 1 + 1 + 3 + 2 + 4 + 6
    step = "deit_tiny 224, training step, compiled"
    assert found[1, "speed against timm", step] == ("1.50x", True)
    assert found[1, "of the network without attention", step] == ("80%", False)
    assert found[3, "time against timm", "deit_tiny 1024, one image, reduce-overhead"] == ("0.50x", True)
    assert found[4, "time against timm", "deit_tiny 224, one image, eager"] == ("not measured", False)
    assert found[5, "host time against timm's module", "attention module, eager"] == ("3.00x", False)
    assert found[6, "host time, compiled against eager", "operator with gradient"] == ("0.40x", True)
    train = "sightline train --config imagenette_deit"
    assert found[8, "speed against the softmax twin", train] == ("1.25x", True)
    assert found[9, "speed, compiled against reduce-overhead", "soft_tiny 224, training step"] == ("0.80x", False)
    assert found[10, "peer in the same run", "flash_bla"] == ("not installed", True)
    assert found[10, "peer in the same run", "timm efficientvit_b2 512"] == ("1,000 images/s", True)
    assert found[10, "peer in the same run", "flex_attention"] == ("not measured", False)


def test_ratios_of_plain_calls_are_within_one_run_and_of_the_newest() -> None:
    older, newer = plain_report(), plain_report()
    newer.about["date"] = "2031-01-02T03:04:05+00:00"
    newer.rows = [row for row in newer.rows if row.mode == "train" and not row.candidate.startswith("timm")]
    for row in newer.rows:
        row.call_ms = row.call_ms and row.call_ms * (0.5 if row.candidate == "inline_deit_tiny" else 1.0)
    found = {(g.number, g.what): g.measured for g in evaluate_plain([older, newer])}
    assert found[1, "of the network without attention"] == "160%"
    assert found[1, "speed against timm"] == "1.50x"


def test_the_tool_prints_goals_of_plain_calls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = result_files(tmp_path, "plain")
    plain_report(files).write()
    assert check_goals.main([str(files[0]), "--short"]) == 1
    assert "| 1 | speed against timm | deit_tiny 224, training step, compiled | 1.50x | >= 1.25x | yes |" in (
        capsys.readouterr().out
    )
