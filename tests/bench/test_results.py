"""Files: named by what was measured, complete at any time, only replaced on request; figures from them."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sightline.bench.plots import plot_all
from sightline.bench.results import MISSING, OK, Finding, Report, Row, describe_run, file_stem, result_files
from sightline.util.errors import FileError
from sightline.util.provenance import COMMIT_VARIABLE

ABOUT = {
    "command": "sightline bench --preset goals", "commit": "abc123", "clean": True, "date": "2030-01-02T03:04:05+00:00",
    "card": "NVIDIA H200", "torch": "2.11.0+cu129", "cuda": "12.9", "triton": "3.6.0", "timm": "1.0.29",
    "ceilings": {"bfloat16": {"copy": 4.25e12, "product": 7e14}},
}  # fmt: skip


def op(candidate: str, ms: float, mode: str = "forward", case: str = "deit_tiny_224", tokens: int = 197) -> Row:
    return Row(
        "op", case, candidate, mode, False, "bfloat16", "cuda", 256, tokens, 6, 32, 14, 14, graph_ms=ms, call_ms=2 * ms,
        floor_ms=0.02, of_floor=ms / 0.02, bandwidth_tb_s=4.0, memory_mib=100.0,
    )  # fmt: skip


def model(candidate: str, ms: float, side: int = 224, compiled: bool = True, mode: str = "forward") -> Row:
    return Row(
        "model", f"inline_deit_tiny {side}", candidate, mode, compiled, "bfloat16", "cuda", 512, height=side,
        width=side, graph_ms=ms, call_ms=ms, images_per_s=512 / ms * 1e3, memory_mib=1000.0 * side,
    )  # fmt: skip


def full_report(files: list[Path] | None = None) -> Report:
    rows = [op("inline triton", 0.03), op("sdpa", 0.09), op("move", 0.02)]
    rows += [op("inline triton", 0.06, "forward+backward"), op("sdpa", 0.5, "forward+backward")]
    rows += [
        op("inline triton", 0.1, case="deit_tiny_384", tokens=577),
        op("sdpa", 0.2, case="deit_tiny_384", tokens=577),
    ]
    for side, ms in ((224, 10.0), (1024, 50.0)):
        rows += [model("inline_deit_tiny", ms, side), model("inline_deit_tiny none", 0.95 * ms, side)]
        rows += [model("timm deit_tiny_patch16_224", 2 * ms, side)]
    rows += [model("inline_deit_tiny", 10.0, compiled=False)]
    findings = [Finding("inline forward: first call", 4.0, "s", 3.0), Finding("inline: batches", 0, "of 8", 0)]
    return Report(dict(ABOUT), rows, findings, files or [])


def plain_report(files: list[Path] | None = None) -> Report:
    """A run of the preset `plain` with some of its parts."""
    deit, timm = "inline_deit_tiny", "timm deit_tiny_patch16_224"

    def call(case: str, name: str, mode: str, how: str, ms: float, batch: int = 1) -> Row:
        side = int(case.rpartition(" ")[2])
        return Row("model", case, name, mode, how != "eager", "bfloat16", "cuda", batch, height=side, width=side,
                   compile_mode="" if how in ("eager", "compile") else how, call_ms=ms, gpu_ms=ms / 2,
                   images_per_s=batch / ms * 1e3)  # fmt: skip

    def small(kind: str, name: str, mode: str, compiled: bool, host: float) -> Row:
        return Row(kind, "8,6,32,1+14x14", name, mode, compiled, "bfloat16", "cuda", 8, host_ms=host, call_ms=host)

    rows = [call(f"{deit} 224", name, "train", "compile", ms, 256)
            for name, ms in ((deit, 10.0), (timm, 15.0), (f"{deit} none", 8.0))]  # fmt: skip
    rows[0].over_timm, rows[0].of_none = 1.5, 0.8
    rows += [call(f"{deit} 1024", name, "latency", "reduce-overhead", ms) for name, ms in ((deit, 0.5), (timm, 1.0))]
    rows += [call(f"{deit} {side}", deit, "forward", "compile", 4.0, 32) for side in (224, 384)]
    rows += [
        small("module", "inline module", "forward", False, 0.3),
        small("module", "timm Attention", "forward", False, 0.1),
    ]
    rows += [
        small("op", "inline triton", "forward+backward", compiled, 0.2 if compiled else 0.5)
        for compiled in (False, True)
    ]
    rows += [
        call("soft_tiny 224", "soft_tiny", "train", how, ms, 64)
        for how, ms in (("compile", 5.0), ("reduce-overhead", 4.0))
    ]
    rows += [call("inline_pvt_small 512", "timm efficientvit_b2", "forward", "compile", 98.0, 98)]
    rows += [Row("op", "deit_tiny_224", "flash_bla", "forward", False, "bfloat16", "cuda", 256, status=MISSING)]
    rows += [Row("run", "imagenette_deit", name, "train", True, "bfloat16", "cuda", 64, compile_mode="auto",
                 images_per_s=rate)
             for name, rate in (("inline", 5000.0), ("softmax", 4000.0))]  # fmt: skip
    about = {**ABOUT, "preset": "plain", "device": "cuda", "command": "sightline bench --preset plain"}
    return Report(about, rows, [], files or [])


def test_round_trip_and_csv(tmp_path: Path) -> None:
    report = full_report(result_files(tmp_path, "x"))
    report.write()
    again = Report.read(report.files[0])
    assert again.about == ABOUT
    assert again.to_json() == report.to_json()
    assert again.rows[0] == report.rows[0]
    lines = list(csv.DictReader(io.StringIO(report.files[1].read_text())))
    assert len(lines) == len(report.rows)
    assert (lines[0]["entrant"], lines[0]["graph_ms"]) == ("inline triton", "0.03")
    assert (lines[0]["commit"], lines[0]["command"]) == ("abc123", "sightline bench --preset goals")


def test_files_are_numbered_or_replaced(tmp_path: Path) -> None:
    names = []
    for again in (False, False, True):
        files = result_files(tmp_path / "new", "x", again)
        Report(dict(ABOUT), files=files).write()
        names.append(files[0].name)
    assert names == ["x.json", "x-2.json", "x.json"]
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["x-2.csv", "x-2.json", "x.csv", "x.json"]


def test_parts_of_one_series_are_one_file(tmp_path: Path) -> None:
    files = result_files(tmp_path, "x")
    full_report(files).write()
    again = Report({**ABOUT, "command": "sightline bench ops"})
    assert again.extend(files[0], [("op", "deit_tiny_224", "forward", "bfloat16")])
    assert again.rows[0].mode == "forward+backward"
    assert len(again.rows) == len(full_report().rows) - 3
    assert again.about["command"] == "sightline bench --preset goals; sightline bench ops"
    for change in ({"commit": "def"}, {"host": "another"}, {"torch": "2.12"}):
        other = Report({**ABOUT, **change})
        assert not other.extend(files[0], [])
        assert other.rows == []


def test_how_a_row_was_called() -> None:
    row = model("x", 1.0)
    assert row.how == "compile"
    graphs = replace(row, compile_mode="reduce-overhead")
    assert (graphs.how, graphs.like(row)) == ("reduce-overhead", False)
    assert replace(row, compiled=False).how == "eager"


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = result_files(tmp_path, "x")
    full_report(files).write()
    before = files[0].read_text()
    monkeypatch.setattr(Path, "replace", lambda *args: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        Report(dict(ABOUT), files=files).write()
    assert files[0].read_text() == before


def test_other_files_are_rejected_by_name(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for text in ("[]", "{", '{"about": {}, "rows": [{"nonsense": 1}], "findings": []}'):
        path.write_text(text)
        with pytest.raises(FileError, match=r"x\.json: not a result of `sightline bench`"):
            Report.read(path)


def test_name_of_the_files() -> None:
    assert file_stem("ops", ["bfloat16"], ABOUT) == "ops-bfloat16-torch2.11.0-nvidia_h200"
    assert file_stem("models", ["float32", "tf32"], ABOUT) == "models-float32+tf32-torch2.11.0-nvidia_h200"


def test_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(COMMIT_VARIABLE, raising=False)
    about = describe_run("sightline bench ops", torch.device("cpu"))
    assert about["torch"] == torch.__version__
    assert "threads" in about["card"]
    assert len(about["commit"]) == 40 or about["commit"] == "unknown"
    monkeypatch.setenv(COMMIT_VARIABLE, "feed")
    assert describe_run("x", torch.device("cpu"))["commit"] == "feed"
    json.dumps(about)


def test_figures(tmp_path: Path) -> None:
    report = full_report()
    for window in (7, 14):
        row = model(f"inline_swin_tiny w{window}", 10.0)
        row.window = window
        report.rows.append(row)
    drawn = plot_all(report, tmp_path / "x")
    assert [path.name for path in drawn] == ["x-tokens.png", "x-resolution.png", "x-memory.png", "x-window.png"]
    assert all(path.read_bytes()[:4] == b"\x89PNG" for path in drawn)
    assert plot_all(Report(dict(ABOUT), [op("sdpa", 1.0)]), tmp_path / "y") == []
    assert [path.name for path in plot_all(plain_report(), tmp_path / "z")] == ["z-resolution.png", "z-latency.png"]
    assert report.rows[0].status == OK
