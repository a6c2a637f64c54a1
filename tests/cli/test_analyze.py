"""`sightline analyze`: every instrument from the command line, and one line for whatever is wrong."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from sightline.analysis.locality import study_locality
from sightline.analysis.masking import study_masking
from sightline.cli.analyze import COMMAND
from sightline.cli.main import main
from sightline.engine.analyze import Session
from sightline.engine.paper import Section, sections

from .checkpoints import public, save, small
from .classifiers import classifier, pictures, run_folder

CAPTURE = pytest.CaptureFixture[str]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return pictures(tmp_path / "data" / "val", count=2)


@pytest.fixture
def weights(tmp_path: Path) -> str:
    classifier(tmp_path / "model.safetensors")
    return str(tmp_path / "model.safetensors")


def analyze(capsys: CAPTURE, out: Path, *arguments: str) -> str:
    """What the command prints."""
    assert main(["analyze", *arguments, "--out", str(out), "--device", "cpu"]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def read(out: Path, name: str) -> dict[str, Any]:
    facts = json.loads((out / f"{name}.json").read_text())
    assert {"instrument", "sightline", "torch", "device", "models", "images", "title", "notes", "result"} <= set(facts)
    return facts


def assert_pictures(out: Path, *names: str) -> None:
    for name in names:
        with Image.open(out / f"{name}.png") as picture:
            assert min(picture.size) > 100
        assert "<svg" in (out / f"{name}.svg").read_text()[:500]


@pytest.mark.parametrize("name", COMMAND.commands)
def test_help_of_every_instrument(name: str, capsys: CAPTURE) -> None:
    assert main(["analyze", name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("usage: sightline")
    assert f"  sightline analyze {name}" in shown
    assert max(map(len, shown.splitlines())) <= 100


@pytest.mark.slow
def test_maps(tmp_path: Path, capsys: CAPTURE, data: Path, weights: str) -> None:
    out = tmp_path / "out"
    picture = str(data / "red" / "00.png")
    shown = analyze(
        capsys, out, "maps", picture, "--checkpoint", weights, "--query", "0.2,0.8", "--query", "class",
        "--query", "2,1", "--img-size", "64", "--animate", "layers",
    )  # fmt: skip
    assert "RANDOM" not in shown
    assert shown.splitlines()[-1].startswith(f"wrote {out}")
    assert_pictures(out, "maps-1", "maps-2", "maps-3")
    facts = read(out, "maps")
    assert facts["images"] == [picture]
    assert [found["block"] for found in facts["result"]["maps"]] == ["blocks.0.attn", "blocks.1.attn"] * 3
    assert facts["result"]["maps"][0]["place"] == [0, 3]
    assert facts["result"]["maps"][4]["place"] == [2, 1]
    assert (out / "maps-layers.gif").read_bytes()[:4] == b"GIF8"
    assert 'class="hover"' in (out / "maps.html").read_text()  # maps to point at


def test_several_mechanisms_with_random_weights(tmp_path: Path, capsys: CAPTURE, data: Path) -> None:
    given = [word for name in ("softmax", "linear", "inline") for word in ("--attention", name)]
    size = ["--model-args", "depths=2", "--model-args", "embed_dims=16", "--model-args", "num_heads=2"]
    shown = analyze(
        capsys, tmp_path / "out", "maps", str(data / "red" / "00.png"), *given, *size, "--img-size", "64x48",
        "--view", "rollout",
    )  # fmt: skip
    assert len(re.findall(r"^(?:softmax|linear|inline): the weights are RANDOM", shown, re.MULTILINE)) == 3
    facts = read(tmp_path / "out", "maps")
    assert [model["title"] for model in facts["models"]] == ["softmax", "linear", "inline"]
    assert all(model["random"] and model["input_size"] == [3, 64, 48] for model in facts["models"])
    assert [found["grid"] for found in facts["result"]["maps"]] == [[4, 3]] * 3


def test_replaced_mechanisms_are_said_to_be(tmp_path: Path, capsys: CAPTURE, data: Path, weights: str) -> None:
    given = ["--checkpoint", weights, "--data", str(data), "--attention", "soft", "--attention", "inline"]
    shown = analyze(capsys, tmp_path / "out", "rank", *given)
    assert re.search(r"^soft: the weights were trained with another .* that do not fit are RANDOM", shown, re.MULTILINE)
    assert "inline: the weights" not in shown
    soft, inline = read(tmp_path / "out", "rank")["models"]
    assert "blocks.0.attn.qkv.weight" in soft["random_tensors"]
    assert (soft["replaced"], inline["replaced"], inline["random_tensors"]) == (True, False, [])


@pytest.mark.slow
def test_injectivity(tmp_path: Path, capsys: CAPTURE, data: Path, weights: str) -> None:
    out = tmp_path / "out"
    shown = analyze(capsys, out, "injectivity")
    assert "Give --data" in shown
    assert not (out / "confusions.json").exists()
    assert_pictures(out, "toy")
    shown = analyze(
        capsys, out, "injectivity", "--checkpoint", weights, "--data", str(data), "--attention", "linear",
        "--attention", "inline", "--query-distance", "0.3", "--score-distance", "0.05", "--img-size", "64",
    )  # fmt: skip
    assert "further apart than 0.3" in shown
    assert "at most 0.05" in shown
    assert_pictures(out, "toy", "confusions", "confusions-centred")
    found = read(out, "confusions")
    assert len(found["images"]) == 6
    assert [len(subject["confused"]) for subject in found["result"]["subjects"]] == [6, 6]
    linear = read(out, "certificates")["result"]["subjects"][0]
    heads = [head for layer in linear["layers"] for head in layer["heads"]]
    assert {head["verdict"] for head in heads} == {"not injective"}
    assert all(head["difference"] < 1e-6 < head["distance"] for head in heads)
    assert all(len(head["queries"]) == 2 for head in heads)


def test_locality(tmp_path: Path, capsys: CAPTURE, data: Path, weights: str) -> None:
    out = tmp_path / "out"
    analyze(capsys, out, "locality", "--checkpoint", weights, "--data", str(data), "--img-size", "64", "--limit", "3")
    found = read(out, "locality")
    assert len(found["images"]) == 3
    layers = found["result"]["subjects"][0]["layers"]
    assert [layer["even"] for layer in layers] == pytest.approx([9 / 17] * 2)
    assert_pictures(out, "locality")


def test_masking_on_the_data_of_a_run(tmp_path: Path, capsys: CAPTURE, data: Path) -> None:
    run_folder(tmp_path / "run", data.parent)
    out = tmp_path / "out"
    shown = analyze(capsys, out, "masking", "--checkpoint", str(tmp_path / "run"), "--sizes", "1,3")
    (found,) = read(out, "masking")["result"]["subjects"]
    assert (found["title"], found["images"], len(found["local"]), len(found["random"])) == ("run", 6, 2, 2)
    assert f"{found['top1']:.2f}" in shown
    assert_pictures(out, "masking")


def test_masking_agrees_with_eval(tmp_path: Path, capsys: CAPTURE, data: Path, weights: str) -> None:
    analyze(capsys, tmp_path / "out", "masking", "--checkpoint", weights, "--data", str(data), "--sizes", "3")
    assert main(["eval", "--checkpoint", weights, "--data", str(data), "--device", "cpu", "--json"]) == 0
    top1 = json.loads(capsys.readouterr().out)["results"][0]["top1"]
    assert read(tmp_path / "out", "masking")["result"]["subjects"][0]["top1"] == pytest.approx(top1, abs=1e-3)


def test_progress_counts_images(data: Path, weights: str) -> None:
    counted: list[int] = []
    session = Session(torch.device("cpu"), [weights] * 2, data=str(data), limit=4, advance=counted.append)
    study_locality(session.subjects)
    assert sum(counted) == session.total == 2 * 4
    counted.clear()
    session.passes = 3  # nothing masked, local keys, random keys
    study_masking(session.labelled(4, batch_size=3), (3,))
    assert sum(counted) == session.total == 3 * 2 * 4


def test_newton_and_json(tmp_path: Path, capsys: CAPTURE, data: Path) -> None:
    classifier(tmp_path / "soft.safetensors", family="soft")
    given = ["newton", "--checkpoint", str(tmp_path / "soft.safetensors"), "--data", str(data), "--iterations", "8"]
    out = analyze(capsys, tmp_path / "out", *given, "--json")
    layers = json.loads(out)["newton"]["subjects"][0]["layers"]
    assert all(len(layer["mean"]) == 9 for layer in layers)
    assert read(tmp_path / "out", "newton")["result"]["iterations"] == 8
    assert_pictures(tmp_path / "out", "newton")


def test_memory(tmp_path: Path, capsys: CAPTURE, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sightline.analysis.memory.BLOCKS", 1)
    shown = analyze(capsys, tmp_path / "out", "memory", "--attention", "inline", "--longest", "1")
    assert "Counted" in shown
    assert [peak["mode"] for peak in read(tmp_path / "out", "memory")["result"]["peaks"]] == [
        "forward", "forward+backward",
    ]  # fmt: skip


@pytest.mark.slow
def test_the_inline_page(tmp_path: Path, capsys: CAPTURE, data: Path) -> None:
    run_folder(tmp_path / "run<b>", data.parent)
    out = tmp_path / "out"
    shown = analyze(capsys, out, "paper", "inline", "--checkpoint", str(tmp_path / "run<b>"), "--labelled", "6")
    assert len(re.findall(r"^made ", shown, re.MULTILINE)) == 7
    page = (out / "inline.html").read_text()
    assert page.count("data:image/png;base64,") >= 7
    assert "run&lt;b&gt;" in page
    assert "run<b>" not in page
    assert not re.search(r'(?:src|href)="(?!data:|#)', page)  # nothing from outside
    assert page.count("<script") == 1 + 2  # the maps of one model, and the two files that draw them
    assert "Not made: " in page
    for name in ("toy", "confusions", "certificates", "locality", "maps", "masking", "rank"):
        read(out, name)


@pytest.mark.slow
def test_pages_say_what_is_missing(tmp_path: Path, capsys: CAPTURE, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sightline.analysis.memory.BLOCKS", 1)
    tiny = ["--model-args", '{"depths": [1, 1, 1, 1], "embed_dims": [8, 16, 24, 32], "num_heads": [1, 2, 3, 4]}']
    shown = analyze(capsys, tmp_path / "soft", "paper", "soft", *tiny, "--longest", "1")
    assert "the weights are RANDOM" in shown
    assert "made     Fig. 1b: memory" in shown
    assert re.search(r"^missing  Fig. 5: Newton convergence: data: no images", shown, re.MULTILINE)
    assert "RANDOM" in (tmp_path / "soft" / "soft.html").read_text()


@pytest.mark.slow
def test_pages_without_labels_or_soft_layers(
    tmp_path: Path, capsys: CAPTURE, data: Path, weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = ("Table: masking", "Fig. 5: Newton convergence")  # the others take their time

    def only_needed(*given: Any) -> dict[str, Section]:
        return {title: section for title, section in sections(*given).items() if title in needed}

    monkeypatch.setattr("sightline.engine.paper.sections", only_needed)
    flat = tmp_path / "flat"
    flat.mkdir()
    (flat / "a.png").write_bytes((data / "red" / "00.png").read_bytes())
    given = ["--checkpoint", weights, "--data", str(flat)]
    shown = analyze(capsys, tmp_path / "inline", "paper", "inline", *given)
    assert re.search(r"^missing  Table: masking: .*needs labels", shown, re.MULTILINE)
    facts = json.loads(analyze(capsys, tmp_path / "soft", "paper", "soft", *given, "--json"))
    assert "no SOFT blocks" in facts["missing"][needed[1]]
    assert Path(facts["page"]).is_file()


@pytest.mark.slow
@pytest.mark.parametrize("family", ["pvt", "swin", "cswin", "soft"])
def test_every_family(
    tmp_path: Path, capsys: CAPTURE, data: Path, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Figure, "savefig", lambda _, path, **__: Path(path).touch())  # the tests above write figures
    classifier(tmp_path / "model.safetensors", family=family)
    given = ["--checkpoint", str(tmp_path / "model.safetensors"), "--data", str(data), "--limit", "2"]
    for name in ("injectivity", "locality", "rank", "masking"):
        analyze(capsys, tmp_path / "out", name, *given, "--img-size", "64x80")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["maps", "injectivity", "`sightline analyze --help`"]),
        (["--out", "x"], ["maps", "injectivity"]),
        (["mapz"], ["'mapz'", "did you mean 'maps'?"]),
        (["foo"], ["'foo'", "maps", "injectivity"]),
        (["maps"], ["IMAGE", "`sightline analyze maps --help`"]),
        (["maps", "IMAGE", "--query", "1.5,2"], ["--query", "'1.5,2'"]),
        (["maps", "IMAGE", "--query=-1,0"], ["--query", "'-1,0'"]),
        (["maps", "IMAGE", "--query", "1,2,3"], ["--query", "'1,2,3'"]),
        (["maps", "IMAGE", "--query", "pixel"], ["--query", "'pixel'"]),
        (["maps", "IMAGE", "--checkpoint", "MODEL", "--query", "0,99"], ["--query", "0,99"]),
        (["maps", "IMAGE", "--checkpoint", "PVT", "--query", "class"], ["class token"]),
        (["maps", "IMAGE", "--checkpoint", "MODEL", "--layers", "7"], ["layer 7", "0 to 1"]),
        (["maps", "IMAGE", "--checkpoint", "MODEL", "--heads", "5"], ["head 5", "0 to"]),
        (["maps", "IMAGE", "--layers", "x"], ["--layers", "'x'"]),
        (["maps", "IMAGE", "--view", "sideways"], ["--view", "'sideways'"]),
        (["maps", "none.png", "--checkpoint", "MODEL"], ["none.png"]),
        (["maps", "BROKEN", "--checkpoint", "MODEL"], ["broken.png"]),
        (["maps", "IMAGE", "--attention", "softmx"], ["softmx", "did you mean 'softmax'?"]),
        (["maps", "IMAGE", "--model", "inline_deit_tny"], ["inline_deit_tny", "did you mean 'inline_deit_tiny'?"]),
        (["maps", "IMAGE", "--checkpoint", "none.pth"], ["none.pth"]),
        (["maps", "IMAGE", "--checkpoint", "HEADLESS"], ["headless.pth", "classifier"]),
        (["maps", "IMAGE", "--out", "IMAGE"], ["--out", "00.png"]),
        (["locality", "--checkpoint", "MODEL"], ["--data"]),
        (["locality", "--data", "EMPTY", "--checkpoint", "MODEL"], ["empty", "no images"]),
        (["locality", "--data", "DATA", "--checkpoint", "MODEL", "--size", "4"], ["--size", "4"]),
        (["locality", "--data", "DATA", "--checkpoint", "MODEL", "--limit", "0"], ["--limit", "got '0'"]),
        (["locality", "--data", "DATA", "--checkpoint", "MODEL", "--img-size", "0"], ["--img-size", "'0'"]),
        (["masking", "--data", "FLAT", "--checkpoint", "MODEL"], ["--data", "labels", "flat"]),
        (["masking", "--data", "DATA", "--checkpoint", "MODEL", "--sizes", "2"], ["--sizes", "2"]),
        (["newton", "--data", "DATA", "--checkpoint", "MODEL"], ["SOFT", "soft_tiny"]),
        (["injectivity", "--query-distance", "-1"], ["--query-distance", "-1"]),
        (["memory", "--attention", "inlin"], ["inlin", "did you mean 'inline'?"]),
        (["memory", "--longest", "0"], ["--longest", "got '0'"]),
        (["memory", "--out", "/proc/new"], ["--out", "/proc"]),
        (["paper", "inlin"], ["'inlin'", "did you mean 'inline'?"]),
        (["paper", "inline", "--data", "EMPTY"], ["empty", "no images"]),
        (["paper", "inline", "--data", "BROKEN", "--checkpoint", "MODEL"], ["broken.png"]),
        (["rank", "--data", "DATA", "--device", "tpu"], ["--device", "tpu"]),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, capsys: CAPTURE, data: Path, weights: str, arguments: list[str], words: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "flat").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "flat" / "a.png")
    (tmp_path / "broken.png").write_bytes(b"words")
    classifier(tmp_path / "pvt.safetensors", family="pvt")
    places = {
        "MODEL": weights, "PVT": str(tmp_path / "pvt.safetensors"), "IMAGE": str(data / "red" / "00.png"),
        "DATA": str(data), "EMPTY": str(tmp_path / "empty"), "FLAT": str(tmp_path / "flat"),
        "BROKEN": str(tmp_path / "broken.png"),
        "HEADLESS": save(public(small("deit", num_classes=0)), tmp_path / "headless.pth"),
    }  # fmt: skip
    assert main(["analyze", *(places.get(word, word) for word in arguments)]) == 2
    captured = capsys.readouterr()
    assert all(word in captured.err for word in words), captured.err
    assert captured.err.startswith("sightline: error: ")
    assert captured.err.count("\n") == 1
