"""Benchmark results as pages of the documentation, on made-up ones."""

import sys
from pathlib import Path

import pytest

from sightline.bench.results import REJECTED, file_stem, result_files

from .test_results import ABOUT, full_report, op, plain_report

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from tables.bench import NOTHING, headline, load_reports, speed_section, tables_page
from tables.figures import FIGURES, PLAIN_FIGURES, draw_figures, draw_plain
from tables.performance import performance_page
from tables.plain import speed_block

RESULTS = Path(__file__).resolve().parents[2] / "results"


def test_pages_without_results(tmp_path: Path) -> None:
    for make in (performance_page, tables_page, speed_section):
        assert NOTHING in make(tmp_path / "none")


def test_page_has_every_row_and_its_origin(tmp_path: Path) -> None:
    report = full_report(result_files(tmp_path, file_stem("goals", ["bfloat16"], ABOUT)))
    bad = op("linear triton", 1.0)
    bad.status, bad.note, bad.graph_ms, bad.call_ms = REJECTED, "it is wrong", None, None
    report.rows.append(bad)
    report.write()
    page = tables_page(tmp_path)
    assert page.count("inline triton") >= 3
    for text in (
        "`sightline bench --preset goals`", "commit abc123", "copy 4.25 TB/s", "NVIDIA H200", report.files[0].name,
        "| 1 | ratio to the floor | deit_tiny_224 forward+backward | 3.00x | <= 2.5x | **no** |",
        "| deit_tiny_224 | forward | inline triton | 0.030 | 0.060 | 0.020 | 1.50 | 4,000 | - | 100 | - | 0.644 |",
        "| inline_deit_tiny 224 | forward, compiled | inline_deit_tiny | 512 | 51,200 | 51,200 | 95.0% |",
        "at 197 tokens already, the fewest measured", "refused: it is wrong", "inline forward: first call",
    ):  # fmt: skip
        assert text in page, text
    assert list(load_reports(tmp_path)) == report.files[:1]


def test_speed_section(tmp_path: Path) -> None:
    full_report(result_files(tmp_path, "x")).write()
    text = speed_section(tmp_path)
    assert "| 1024 px, batch 512 | 10,240 | 5,120 | 10,779 | 10,240 | 5,120 | 10,779 |" in text
    assert "One NVIDIA H200, torch 2.11.0+cu129, bfloat16" in text
    assert text.count("commit abc123") == 1
    assert "2.0x at 1024 px" in headline(tmp_path)
    assert speed_section(tmp_path, "performance_tables.md") in performance_page(tmp_path)


def test_plain_calls_come_first(tmp_path: Path) -> None:
    assert speed_block(tmp_path, "x.md") is None
    full_report(result_files(tmp_path, "models")).write()
    plain_report(result_files(tmp_path, "plain")).write()
    page = performance_page(tmp_path)
    assert page.index("## Plain calls") < page.index("## Kernels, by graph replay") < page.index("## Speed")
    step = "| training step | 224 px | compiled | 256 | 25,600 | 17,067 | 32,000 | 1.50 | 80% |"
    for text in (
        step, "| one image | 1024 px | reduce-overhead | 1 | 0.50 ms | 1.00 ms | - | - | - |", "images/latency.png",
        "| 1 | speed against timm | deit_tiny 224, training step, compiled | 1.50x | >= 1.25x | yes |",
        "| 8,6,32,1+14x14 | forward | eager | inline module | 300.0 | 300.0 | - | - |",
        "| imagenette_deit | auto | inline | 64 | - | 5,000 |",
    ):  # fmt: skip
        assert text in page, text
    assert step in (speed_block(tmp_path, "x.md") or "")
    assert list(load_reports(tmp_path)) == [tmp_path / "models.json"]
    assert "flash_bla: not installed" in tables_page(tmp_path)


def test_what_is_compared_is_of_one_run(tmp_path: Path) -> None:
    """The newest that has it, even where that run measured fewer candidates."""
    plain_report(result_files(tmp_path, "plain")).write()
    newer = plain_report(result_files(tmp_path, "plain-2"))
    newer.about |= {"date": "2030-02-02T03:04:05+00:00", "commit": "def4567"}
    newer.rows = newer.rows[:1]
    newer.write()
    block = speed_block(tmp_path, "x.md") or ""
    assert "| training step | 224 px | compiled | 256 | 25,600 | - | - | 1.50 | 80% |" in block
    assert "| one image | 1024 px | reduce-overhead | 1 | 0.50 ms | 1.00 ms | - | - | - |" in block
    assert "each comparison at the newest of these that has it: commit def4567, commit abc123. All" in block


def test_figures_of_plain_calls(tmp_path: Path) -> None:
    assert draw_plain(tmp_path, tmp_path) == []
    plain_report(result_files(tmp_path, "plain")).write()
    drawn = draw_plain(tmp_path, tmp_path)
    assert [path.stem for path in drawn] == list(PLAIN_FIGURES)
    assert all(path.read_bytes()[:4] == b"\x89PNG" for path in drawn)


@pytest.mark.slow
def test_figures_of_the_recorded_results(tmp_path: Path) -> None:
    drawn = draw_figures(RESULTS, tmp_path)
    assert [path.stem for path in drawn] == [*FIGURES, "latency", "plain_throughput"]
    assert all(path.read_bytes()[:4] == b"\x89PNG" for path in drawn)


def test_the_page_opens_with_plain_calls() -> None:
    _, plain, kernels, *_ = performance_page(RESULTS).split("\n## ")
    assert plain.startswith("Plain calls\n")
    assert [plain.count("](images/"), kernels.count("](images/")] == [2, 3]
    assert "85 times at 16,385" in kernels
