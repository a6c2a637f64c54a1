"""Result files as they are gathered, measured and shown in the documentation, on made-up ones."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))

import measure_sequences
import run_dense
from make_tables import with_block
from measuring import Budget, kept, measure
from tables.dense import cost_section, runs_section
from tables.export import accuracy_section, checks_section, latency_section, packages_section
from tables.photos import photos_section
from tables.sequences import sequences_section

from sightline.engine.settings import configure, load_recipe
from sightline.util.errors import FileError

CPU = torch.device("cpu")
VERSIONS = {"device": "1 x cuda (CARD)", "torch": "2.0", "timm": "1.0", "commit": "0123456789", "command": "a command"}


def write(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def cells(page: str, start: str) -> list[str]:
    (line,) = (line for line in page.splitlines() if line.startswith(f"| {start} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_dense_runs_are_averaged_over_their_seeds(tmp_path: Path) -> None:
    facts = {**VERSIONS, "run": "small", "head": "retinanet", "backbone": "inline_swin_tiny", "attention": "softmax",
             "epochs": 2, "recipe_epochs": 150, "steps": 20}  # fmt: skip
    tested = [
        {**facts, "seed": seed, "best_epoch": seed + 1, "split": "train2017", "from": "sightline eval", "box_ap": score}
        for seed, score in enumerate((80.0, 82.0))
    ]
    trained = {**facts, "seed": 0, "best_epoch": 1, "split": "val", "from": "training", "box_ap": 3.0}
    page = runs_section(write(tmp_path / "runs.json", {"note": "Mind this.", "rows": [*tested, trained]}))
    assert "CARD, torch 2.0, timm 1.0, commit 0123456" in page
    assert "Mind this." in page
    shown = ["`small`", "retinanet", "inline_swin_tiny, softmax", "2", "20", "2 of 150", "1 to 2"]
    scores = ["81.00 ± 1.41", "3.00\\*"]
    assert cells(page, "`small`") == [*shown, *scores]  # no column for a test split and for masks, which there are not


def test_dense_runs_have_a_twin_and_the_packaged_model_its_weights() -> None:
    jobs = run_dense.make_jobs(["camvid", "coco_mini"], list(run_dense.BACKBONES), 2, Path("data"), {"batch.size": 4})
    names = [job["run"] for job in jobs if job["changes"]["run.seed"] == 1]
    assert names == [
        "camvid inline_swin_tiny", "camvid inline_swin_tiny, softmax", "camvid soft_norm_tiny",
        "camvid soft_norm_tiny, softmax", "camvid inline_vit_tiny", "camvid inline_vit_tiny, softmax",
        "camvid inline_vit_tiny, pretrained", "coco_mini inline_swin_tiny",
    ]  # fmt: skip
    for job in jobs:
        config: Any = configure(load_recipe(job["recipe"]), {**run_dense.QUIET, **job["changes"]})
        assert (config.batch.size, config.model.pretrained) == (4, "pretrained" in job["run"])
        assert ("softmax" in job["run"]) == ("attention" in config.model.args)


def test_dense_runs_name_the_folder_that_is_missing(tmp_path: Path) -> None:
    (tmp_path / "camvid").mkdir()
    with pytest.raises(FileError, match=r"bccd: no such folder"):
        run_dense.main([str(tmp_path), "--out", str(tmp_path / "dense.jsonl")])
    assert not (tmp_path / "dense.jsonl").exists()


def test_cost_of_dense_models_tells_how_memory_grows(tmp_path: Path) -> None:
    facts = {"backbone": "b", "head": "upernet", "attention": "own", "mode": "forward"}
    rows = [
        {**facts, "height": 512, "width": 512, "ms": 1.0, "peak_mib": 100.0},
        {**facts, "height": 2048, "width": 2048, "ms": 20.0, "peak_mib": 2400.0},
        {**facts, "height": 512, "width": 512, "attention": "softmax", "ms": 2.0, "peak_mib": None},
        {**facts, "height": 2048, "width": 2048, "attention": "softmax", "ms": None, "peak_mib": None,
         "error": "out of memory"},
        {**facts, "height": 800, "width": 1280, "head": "mask_rcnn", "ms": 5.0, "peak_mib": 7.0},
    ]  # fmt: skip
    page = cost_section(write(tmp_path / "cost.json", {"versions": VERSIONS, "rows": rows}))
    assert "| `b` | own | forward | 1.0 | 100 | 20.0 | 2,400 | 1.50 |" in page
    assert "| `b` | softmax | forward | 2.0 | - | out of memory | - | - |" in page
    assert "| `b` | own | 5.0 | 7 |" in page


def test_sequences_have_accuracy_and_speed_of_every_task_that_was_run(tmp_path: Path) -> None:
    facts = {**VERSIONS, "steps": 100, "batch": 32, "lr": 1e-4, "seed": 0, "val": 30.0, "test": 31.0, "examples": 2000}
    rows = [{**facts, "attention": name, "published_as": known}
            for name, known in (("softmax", "Transformer"), ("inline", None))]  # fmt: skip
    write(tmp_path / "listops-card.json", {"task": "listops", "rows": rows})
    assert cells(sequences_section(tmp_path, "card"), "`inline`")[4:] == ["", "-", "-", "-", "-"]
    modes = {"train": {"examples_per_second": 1000.0, "peak_mib": 10.0},
             "forward": {"examples_per_second": 3000.0, "peak_mib": 2.0}}  # fmt: skip
    speed = [{"task": "listops", "attention": "softmax", **modes}, {"task": "image", "attention": "inline", **modes}]
    write(tmp_path / "speed-card.json", {"versions": VERSIONS, "rows": speed})
    page = sequences_section(tmp_path, "card")
    assert cells(page, "`softmax`")[1:] == ["100", "30.00", "31.00", "37.1", "1,000", "3,000", "10", "2"]
    assert cells(page, "`inline`")[4:] == ["", "-", "-", "-", "-"]
    assert cells(page, "Linformer")[4] == "37.3"
    assert "5,000 updates of 32 examples, its schedule compressed" in page
    assert "Pathfinder" not in page


def test_seeds_are_averaged(tmp_path: Path) -> None:
    facts = {**VERSIONS, "steps": 100, "batch": 32, "lr": 1e-4, "val": 30.0, "examples": 2000, "published_as": None}
    rows = [{**facts, "attention": "inline", "seed": seed, "test": 30.0 + seed} for seed in range(3)]
    write(tmp_path / "listops-card.json", {"task": "listops", "rows": rows})
    page = sequences_section(tmp_path, "card")
    assert cells(page, "`inline`")[2:4] == ["30.00", "31.00 (30.00 to 32.00)"]
    assert "seed 0, 1, 2" in page
    rows = [{"top1": 90.0 + seed, "curve": [[20, 90.0, 1.0]], "job": {"recipe": "photos"}} for seed in range(3)]
    page = photos_section(write(tmp_path / "photos.json", {"versions": VERSIONS, "rows": rows}))
    assert cells(page, "`photos`")[1:] == ["20", "91.00", "90.00 to 92.00", "3", "91.57"]


def test_results_that_are_not_there_are_left_out(tmp_path: Path) -> None:
    assert runs_section(tmp_path / "none.json") == cost_section(tmp_path / "none.json") == ""
    assert sequences_section(tmp_path, "card") == ""
    assert photos_section(tmp_path / "none.json") == ""
    assert with_block("a\n<!-- x -->\nold\n<!-- /x -->\nb", "x", "new") == "a\n<!-- x -->\nnew\n<!-- /x -->\nb"


def test_a_case_is_timed_however_little_time_there_is() -> None:
    calls: list[int] = []
    found = measure(lambda: calls.append(1), CPU, 0.0, warm=3)
    assert len(calls) == 7  # three to be warm, one to know how long it takes, three that count
    assert found["ms"] > 0
    assert measure(lambda: calls.append(1), CPU, None)["error"] == "no time left"
    assert len(calls) == 7

    def too_large() -> None:
        raise torch.OutOfMemoryError

    assert measure(too_large, CPU, 1.0)["error"] == "out of memory"


def test_a_budget_is_shared_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 0.0, 0.0, 0.0, 1.5, 1.5, 2.5])
    monkeypatch.setattr("measuring.time.perf_counter", lambda: next(clock))
    assert Budget(4, seconds=1.0, total=100.0).share() == 1.0
    budget = Budget(4, seconds=1.0, total=2.0)
    assert [budget.share() for _ in range(4)] == [0.5, 0.5 / 3, 0.5 / 2, None]


def test_sequences_are_measured_as_long_as_the_real_ones() -> None:
    lengths = torch.cat([(ids != 0).sum(1) for ids, _ in measure_sequences.batches("listops", 16, CPU)])
    assert 501 <= lengths.min() < 700
    assert 1800 < lengths.max() <= 1999
    assert {ids.shape for ids, _ in measure_sequences.batches("image", 2, CPU)} == {(2, 1024)}


def test_a_mechanism_is_measured_in_both_modes() -> None:
    examples = measure_sequences.batches("image", 1, CPU)[:1]
    row = measure_sequences.row_of("image", "inline", examples, 0.1, Budget(2, 0.0, 60.0))
    assert row["attention"] == "inline"
    assert all(row[mode]["examples_per_second"] > 0 for mode in ("train", "forward"))


def test_exported_files(tmp_path: Path) -> None:
    """The worst batch, the fastest round, and the median of rounds."""
    about = {"versions": VERSIONS, "machine": "a cpu", "onnxruntime": "1.0", "tolerance": 1e-4, "clock": "cpu"}
    checks = [{"height": 8, "width": 9, "batch": batch, "difference": batch * 1e-6} for batch in (1, 3)]
    path = write(
        tmp_path / "checks.json", {**about, "rows": [{"case": "net, maps", "suffix": "onnx", "checks": checks}]}
    )
    assert cells(checks_section(path), "`net`, maps")[1:] == [".onnx", "3.0e-06"]
    times = {"eager": [4.0, 3.0], "compiled": [2.0], "onnxruntime": [1.5], "int8": [1.0]}
    path = write(tmp_path / "latency.json", {**about, "rows": [{"model": "net", "size": 8, "ms": times}]})
    assert cells(latency_section(path), "`net`")[1:] == ["8", "3.0", "2.0", "1.5", "1.0"]
    assert "`net` at 8" not in latency_section(path)
    older = {"model": "net", "size": 8, "ms": times, "commit": "abcdefghij"}
    path = write(tmp_path / "latency.json", {**about, "rows": [older]})
    assert "`net` at 8: abcdefg." in latency_section(path)
    assert kept(str(path)) == [{**older, "command": VERSIONS["command"]}]
    row = {
        "model": "net", "size": 8, "batch": 10, "dynamic": "batch", "dtype": "float32", "difference": 1e-6,
        "alone": None, "ms": {"package": [2.0, 4.0, 3.0], "compiled": [6.0]},
    }  # fmt: skip
    path = write(tmp_path / "packages.json", {**about, "rows": [row]})
    assert cells(packages_section(path), "`net`")[5:] == ["3,333", "1,667", "2.00", "1.0e-06", "-"]
    score = {"file": "the run", "top1": 86.25, "top5": 99.0, "loss": 0.5, "images": 2000}
    path = write(tmp_path / "accuracy.json", {**about, "note": "A note.", "rows": [score]})
    assert cells(accuracy_section(path), "the run")[1:] == ["86.25", "99.00", "0.5000"]
    assert "A note." in accuracy_section(path)
    assert checks_section(tmp_path / "missing.json") == ""
