"""The report of a run folder made here: figures that are pictures, and a page that is whole and safe."""

import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml
from PIL import Image

from sightline.engine.checkpoint import write_weights
from sightline.engine.report import write_report
from sightline.engine.report.figures import confusion_figure
from sightline.engine.report.record import read_record
from sightline.tasks.card import ModelCard
from sightline.tasks.create import create

ARGS = {"embed_dims": 16, "num_heads": 2, "depths": 4, "patch_size": 8, "img_size": 32, "num_classes": 3}
CLASSES = ("cat", "<script>alert(1)</script>", "cost $x$")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of three epochs on images made here, one class a colour."""
    data = tmp_path / "data"
    for label, name in enumerate("abc"):
        for split in ("train", "val"):
            (data / split / name).mkdir(parents=True)
            for i in range(2):
                Image.new("RGB", (40, 32), (80 * label, 90, 40 * i)).save(data / split / name / f"{i}.png")
    run = tmp_path / "run"
    run.mkdir()
    config = {"data": {"path": str(data), "size": 32}, "model": {"name": "inline_deit_tiny", "args": {"depths": 4}}}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    (run / "versions.json").write_text(json.dumps({"sightline": "0", "commit": None, "command": "sightline train"}))
    rows = [
        {"epoch": e, "step": e * 4, "train_loss": 2.0 / e, "lr": 1e-3, "top1": t, "top5": 100.0}
        for e, t in ((1, 40.0), (2, 71.25), (3, 70.0))
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"epoch": 4, "tra')
    (run / "classes.json").write_text(json.dumps(list("abc")))
    (run / "confusion.json").write_text(
        json.dumps({"classes": list("abc"), "counts": [[2, 0, 0], [1, 1, 0], [0, 0, 2]]})
    )
    card = ModelCard("inline_deit_tiny", ARGS, tuple("abc"), (3, 32, 32), crop_pct=1.0)
    write_weights(run / "checkpoints" / "best" / "model.safetensors", create("inline_deit_tiny", ARGS), card)
    return run


class Page(HTMLParser):
    """What is on a page: tags that are not closed, sources of pictures, texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [str(value) for key, value in attrs if key in ("src", "href")]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


@pytest.mark.slow
def test_pictures_and_page(folder: Path) -> None:
    page = write_report(folder)
    assert page == folder / "report.html"
    pictures = [folder / "curves.png", folder / "confusion.png", *sorted((folder / "attention").glob("*.png"))]
    assert len(pictures) == 5  # one of every class
    for path in pictures:
        with Image.open(path) as image:
            assert min(image.size) > 150
            assert len(image.convert("L").getcolors(1 << 16) or []) > 10  # something is drawn
    found = Page(page.read_text(encoding="utf-8"))
    assert not found.open
    assert found.tags.count("img") == 5
    assert all(link.startswith("data:image/png;base64,") for link in found.links)  # it needs nothing else
    assert found.tags.count("script") == 3 + 2  # data of three images, and the two files that draw them
    for words in ("71.25 %", "sightline train", "inline_deit_tiny", "most often confused with", "Configuration"):
        assert words in found.words


@pytest.mark.slow
def test_names_are_escaped(folder: Path) -> None:
    (folder / "classes.json").write_text(json.dumps(CLASSES))
    page = write_report(folder)
    text = page.read_text(encoding="utf-8")
    found = Page(text)
    assert "<script>alert" not in text
    assert found.tags.count("script") == 3 + 2
    assert CLASSES[1] in found.words
    assert CLASSES[2] in found.words


def test_without_weights_the_rest_is_there(folder: Path) -> None:
    (folder / "checkpoints" / "best" / "model.safetensors").unlink()
    notes: list[str] = []
    page = write_report(folder, notes.append)
    assert "no weights" in notes[0]
    assert Page(page.read_text(encoding="utf-8")).tags.count("img") == 2


def test_without_matplotlib_the_page_is_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    notes: list[str] = []
    page = write_report(folder, notes.append)
    assert "pip install matplotlib" in notes[0]
    found = Page(page.read_text(encoding="utf-8"))
    assert found.tags.count("img") == 0
    assert "71.25 %" in found.words


def test_an_early_end_has_a_report_too(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("model: {name: inline_deit_tiny}")
    page = write_report(tmp_path, lambda _: None)
    assert Page(page.read_text(encoding="utf-8")).tags.count("img") == 0


def test_no_run_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=re.escape(str(tmp_path))):
        write_report(tmp_path)


def test_the_record(folder: Path) -> None:
    record = read_record(folder)
    assert len(record.rows) == 3  # the line that was cut short is none
    assert record.best()["epoch"] == 2
    assert record.series("top1") == {1: 40.0, 2: 71.25, 3: 70.0}
    assert record.series("nothing") == {}


@pytest.mark.slow
def test_many_classes(folder: Path) -> None:
    count = 60
    (folder / "classes.json").write_text(json.dumps([f"class {i}" for i in range(count)]))
    counts = [[int(i == j) for j in range(count)] for i in range(count)]
    counts[7][7], counts[7][8] = 0, 5
    (folder / "confusion.json").write_text(json.dumps(counts))
    words = Page(write_report(folder).read_text(encoding="utf-8")).words
    assert "The 50 classes with the lowest accuracy" in words
    assert "class 8 (5)" in words


def test_segmentation_counts_pixels_and_names_its_head(folder: Path) -> None:
    config = {"task": "segmentation", "model": {"name": "inline_pvt_tiny", "head": "upernet"}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    words = Page(write_report(folder).read_text(encoding="utf-8")).words
    assert "upernet on inline_pvt_tiny" in words
    assert "pixelsaccuracyprecisionIoU" in words
    assert "b250.0 %100.0 %50.0 %" in words.replace("\n", "")  # of two pixels one was found, and no other taken for it


@pytest.mark.slow
def test_detection_has_a_table_of_classes(folder: Path) -> None:
    config = {"task": "detection", "model": {"name": "inline_pvt_tiny", "head": "retinanet"}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "confusion.json").unlink()
    scores = [{"class": "<b>", "box_ap": 50.0}, {"class": "cell", "box_ap": 12.5}, {"class": "none", "box_ap": None}]
    (folder / "per_class.json").write_text(json.dumps(scores))
    words = Page(write_report(folder).read_text(encoding="utf-8")).words
    assert "classbox APnone-cell12.50 %<b>50.00 %" in words.replace("\n", "")
    for damaged in ("7", '{"a": 1}', '[3, {"box_ap": "high", "class": "x"}]'):
        (folder / "per_class.json").write_text(damaged)
        assert "retinanet on" in Page(write_report(folder).read_text(encoding="utf-8")).words


@pytest.mark.parametrize(
    ("counts", "written"), [([[30, 10], [0, 5]], "10 30 5"), ([[3_000_000, 10**6], [0, 5]], "100 25 75")]
)
def test_cells_hold_what_fits(counts: list[list[int]], written: str) -> None:
    figure = confusion_figure(["a", "b"], counts)
    assert " ".join(sorted(text.get_text() for text in figure.axes[0].texts)) == written
