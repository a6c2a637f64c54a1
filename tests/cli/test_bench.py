"""`sightline bench`."""

import json
import re
import sys
from pathlib import Path

import pytest
from torch import Tensor

from sightline import backend
from sightline.bench import cases, clock, cold_start, request
from sightline.bench import run as bench_run
from sightline.bench.results import Finding, Report
from sightline.cli.main import main
from sightline.ops import inline

OPS = ["bench", "ops", "--device", "cpu", "--budget", "1", "--shape", "2,2,8,1+4x4", "--shape", "2,2,8,1+6x6"]
MODEL = "inline_deit_tiny:depths=1:embed_dims=24:num_heads=2"
MODELS = ["bench", "models", "--device", "cpu", "--budget", "1", "--model", MODEL, "--batch-size", "2"]


@pytest.fixture(autouse=True)
def short_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "WARM_UP_MS", 1.0)
    monkeypatch.setitem(bench_run.CEILING_SIZES, "cpu", (2**16, 32))


def only_report(folder: Path) -> Report:
    (path,) = folder.glob("*.json")
    return Report.read(path)


@pytest.mark.slow
def test_ops(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*OPS, "--mechanism", "inline", "--mechanism", "linear(phi=elu1)", "--out", str(tmp_path)]
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    report = only_report(tmp_path)
    assert [row.status for row in report.rows] == ["ok"] * 16
    assert {row.candidate for row in report.rows} == {"inline reference", "linear(phi=elu1) reference", "sdpa", "move"}
    assert {row.mode for row in report.rows} == {"forward", "forward+backward"}
    assert report.about["command"].startswith("sightline bench ops --mechanism inline --mechanism 'linear(phi=elu1)'")
    assert report.about["ceilings"]["float32"]["copy"] > 0
    assert "x floor" in out
    assert "Where linear overtakes SDPA:" in out
    assert out.splitlines()[-1].startswith(f"wrote {tmp_path}")
    assert "[4/4 measured" in err
    assert "s left]" in err


@pytest.mark.slow
def test_models_with_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        *MODELS,
        "--img-size",
        "32,48x64",
        "--baselines",
        "none",
        "--mode",
        "forward,train",
        "--plot",
        "--json",
    ]
    assert main([*arguments, "--out", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    data = json.loads(out)
    assert [row["entrant"] for row in data["rows"][:2]] == [MODEL, f"{MODEL} none"]
    assert {row["status"] for row in data["rows"]} == {"ok"}
    assert [row["batch"] for row in data["rows"]] == [2, 2, 1, 1] * 2
    assert err.splitlines()[-1].endswith("-resolution.png")
    assert only_report(tmp_path).rows[0].images_per_s == data["rows"][0]["images_per_s"]


@pytest.mark.slow
def test_models_with_other_mechanisms(tmp_path: Path) -> None:
    others = ["--attention", "performer(features=4)", "--attention", "focused", "--rivals", "softmax"]  # former name
    assert main([*MODELS, "--img-size", "32", "--mode", "forward", *others, "--out", str(tmp_path)]) == 0
    report = only_report(tmp_path)
    labels = [MODEL, f"{MODEL} performer(features=4)", f"{MODEL} focused", f"{MODEL} softmax"]
    assert [row.candidate for row in report.rows] == labels
    assert {row.status for row in report.rows} == {"ok"}


@pytest.mark.parametrize(("wrong", "message"), [("focussed", "'focused'"), ("inline,softmax", "2 parts")])
def test_wrong_mechanisms(wrong: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([*MODELS, "--attention", wrong, "--out", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err
    assert main([*OPS, "--attention", "focused"]) == 2
    assert "--attention: only applies to `bench models`" in capsys.readouterr().err


@pytest.mark.slow
def test_a_wrong_operator_is_rejected_and_the_status_is_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    definition = inline.reference.inline_attention

    def wrong(*args: object, **kwargs: object) -> Tensor:
        return -definition(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setitem(inline.IMPLEMENTATIONS, "triton", wrong)
    monkeypatch.setattr(backend, "TRITON_OPERATORS", frozenset({"inline_attention"}))
    monkeypatch.setattr(backend, "_no_device", lambda device: None)
    assert main([*OPS, "--backend", "triton,torch", "--mode", "forward", "--out", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    statuses = {(row.candidate, row.status) for row in only_report(tmp_path).rows}
    assert statuses == {("inline triton", "refused"), ("inline reference", "ok"), ("sdpa", "ok"), ("move", "ok")}
    assert "refused" in out
    assert err.count("sightline: refused: inline triton on ") == 2


@pytest.mark.slow
def test_a_run_that_is_interrupted_keeps_what_it_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, count = bench_run.run_plan, iter(range(9))

    def interrupted(*args: object) -> object:
        if next(count) == 2:
            raise KeyboardInterrupt
        return whole(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(bench_run, "run_plan", interrupted)
    assert main([*OPS, "--out", str(tmp_path)]) == 130
    assert len(only_report(tmp_path).rows) == 6
    assert f"measured so far: {tmp_path}" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["cold_start", "surprises"])
def test_cold_start_by_both_names(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", name, "--device", "cpu", "--shape", "2,2"]) == 2
    assert "'2,2'" in capsys.readouterr().err


def test_cold_start(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_start, "COMPOSED", (cold_start.OpCase("small", 3, 2, 8, (3, 4), 1),))
    found = [Finding("inline: new size 2,2,8,1+5x6", 7.0, "ms", 50)]
    monkeypatch.setattr(cold_start, "run_process", lambda *words: found)
    shapes = [word for text in ("2,2,8,1+3x4", "2,2,8,1+5x6") for word in ("--shape", text)]
    assert main(["bench", "cold_start", "--device", "cpu", *shapes, "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "batches that change the bits of an image" in out
    assert "new size 2,2,8,1+5x6" in out
    (path,) = tmp_path.glob("*.json")
    assert path.name.startswith("cold_start-float32-torch")
    assert [item.value for item in only_report(tmp_path).findings] == [7.0, 7.0, 0]


@pytest.mark.slow
def test_goals_on_a_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "CPU_CASES", (cases.ModelCase("inline_deit_tiny", (32, 32), 1),))
    assert main(["bench", "--preset", "goals", "--device", "cpu", "--budget", "1", "--out", str(tmp_path)]) == 0
    assert "of limit" in capsys.readouterr().out
    assert only_report(tmp_path).about["command"].startswith("sightline bench --preset goals")
    (path,) = tmp_path.glob("*.csv")
    assert path.name.startswith("goals-float32-torch")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "ops, modules, models, cold_start"),
        (["opps"], "'opps'"),
        (["ops", "--preset", "gaols"], "--preset: .*'gaols'"),
        (["ops", "--shape", "1,2"], "--shape: .*'1,2'"),
        (["ops", "--mechanism", "inlne"], "'inlne'.*'inline'"),
        (["ops", "--mechanism", "none"], "--mechanism: 'none'"),
        (["ops", "--mode", "train"], "--mode: .*'train'"),
        (["ops", "--model", "inline_deit_tiny"], "--model: .*bench models"),
        (["ops", "--baselines", "timm"], "--baselines: 'timm'"),
        (["ops", "--backend", "cuda"], "--backend: .*'cuda'"),
        (["models", "--mechanism", "inline"], "--mechanism: .*bench ops"),
        (["models", "--model", "inline_deit_tny"], "--model: .*'inline_deit_tny'.*'inline_deit_tiny'"),
        (["models", "--model", "inline_deit_tiny:depht=2"], "--model: .*'depht'.*'depths'"),
        (["models", "--img-size", "12x"], "--img-size: .*'12x'"),
        (["models", "--batch-size", "0"], "--batch-size: .*'0'"),
        (["models", "--batch-size", "1,2"], "--batch-size: .*2 for 1 sizes"),
        (["models", "--dtype", "float8"], "--dtype: .*'float8'"),
        (["models", "--compile", "maybe"], "--compile: .*'maybe'"),
        (["modules", "--baselines", "sdpa"], "--baselines: 'sdpa'"),
        (["models", "--only", "host"], "--only: .*plain"),
        (["--preset", "plain", "--only", "hots"], "--only: 'hots'.*'host'"),
        (["models", "--budget", "0"], "--budget: .*0"),
        (["models", "--budget", str(10**60)], "--budget: .*1000"),
        (["models", "--jobs", "99999"], "--jobs: .*99999"),
        (["models", "--mode", " "], "--mode: .*empty"),
        (["models", "--device", "tpu"], "--device: .*'tpu'"),
        (["models", "--preset", "goals", "--mode", "train"], "--mode: .*goals"),
        (["ops", "--preset", "soft"], "--preset: soft .*cpu"),
        (["cold_start", "--preset", "soft"], "--preset: soft .*cold_start"),
        (["ops", "--preset", "soft", "--shape", "2,2,8,9"], "--shape: .*soft"),
        (["cold_start", "--preset", "goals"], "--preset: goals .*cold_start"),
    ],
)
def test_bad_input(arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    device = [] if "--device" in arguments else ["--device", "cpu"]
    assert main(["bench", *arguments, *device, "--out", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.search(message, err)
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_no_cuda_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["bench", "ops", "--device", "cuda", "--out", str(tmp_path)]) == 2
    assert "--device: cuda " in capsys.readouterr().err


def test_figures_without_matplotlib(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main([*OPS, "--plot"]) == 2
    assert "pip install matplotlib" in capsys.readouterr().err
