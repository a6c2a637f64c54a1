"""`sightline.export`, and its files in `load`, `predict` and `evaluate`."""

import doctest
import io
import json
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from PIL import Image
from torch import nn

import sightline
from sightline.cli.main import main
from sightline.engine.pictures import check_attention
from sightline.hub import exporting, formats
from sightline.hub.exporting import Exported
from sightline.hub.trace import AXES
from sightline.tasks.segmentation.config import Model
from sightline.tasks.segmentation.model import Segmenter
from sightline.util.errors import FileError, InputError, RunError
from sightline.util.provenance import package_version
from tests.cli.classifiers import CLASSES, classifier, pictures
from tests.models.tiny import PYRAMID, assert_close, image, tiny

onnx = pytest.importorskip("onnx", reason="needs the extra `export`")
ort = pytest.importorskip("onnxruntime", reason="needs the extra `export`")


@pytest.fixture(autouse=True)
def _brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "SECONDS", 0.0)


exported = pytest.mark.xdist_group("exported")  # one file for all of these


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Exported]:
    """A folder with a classifier `model.safetensors` and its `model.onnx`, for any batch and size."""
    folder = tmp_path_factory.mktemp("made")
    classifier(folder / "model.safetensors")
    return folder, sightline.export(folder / "model.safetensors", folder / "model.onnx")


def test_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (example,) = doctest.DocTestFinder(recurse=False).find(sightline.export)
    assert example.examples
    assert doctest.DocTestRunner().run(example).failed == 0


@exported
def test_a_file_is_compared_at_three_sizes_and_two_batches(made: tuple[Path, Exported]) -> None:
    folder, done = made
    assert done.inputs == ("batch", 3, "height", "width")
    assert {(c.batch, c.height, c.width) for c in done.checks} == {
        (batch, *size) for batch in (1, 3) for size in ((32, 32), (33, 45), (73, 73))
    }
    assert max(c.difference for c in done.checks) <= done.tolerance == 1e-4
    report = json.loads((folder / "model.onnx.json").read_text())
    assert (report["opset"], len(report["checks"])) == (done.opset, 6)
    assert {"commit", "versions", "machine", "tolerance"} <= report.keys()


@exported
def test_the_file_describes_itself(made: tuple[Path, Exported]) -> None:
    folder, done = made
    proto = onnx.load(str(folder / "model.onnx"))
    onnx.checker.check_model(proto)
    shape = [dim.dim_param or dim.dim_value for dim in proto.graph.input[0].type.tensor_type.shape.dim]
    assert shape == list(done.inputs)
    props = {item.key: item.value for item in proto.metadata_props}
    assert json.loads(props["classes"]) == list(CLASSES)
    assert {"mean", "std", "interpolation", "crop_pct"} <= json.loads(props["input"]).keys()
    assert json.loads(props["exported"])["versions"]["torch"] == package_version("torch")


@exported
def test_predict_and_evaluate_take_the_file(made: tuple[Path, Exported], tmp_path: Path) -> None:
    folder, _ = made
    data = pictures(tmp_path / "data")
    before, after = (sightline.load(folder / name) for name in ("model.safetensors", "model.onnx"))
    assert (after.classes, after.task, after.card) == (before.classes, before.task, before.card)
    assert after.parameters == before.parameters
    assert torch.device(after.device) == before.device == torch.device("cpu")
    photo = Image.new("RGB", (50, 40), "red")
    (want,), (got,) = (list(sightline.predict(loaded, photo)) for loaded in (before, after))
    assert [row["class"] for row in got.found] == [row["class"] for row in want.found]
    one, other = (sightline.evaluate(loaded, data, workers=0, batch_size=5) for loaded in (before, after))
    assert one["top1"] == other["top1"]
    assert other["loss"] == pytest.approx(one["loss"], abs=1e-4)
    with pytest.raises(InputError, match="attention"):
        check_attention(after, (0.5, 0.5))


def test_a_file_that_differs_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The status is 1, and the file that was there before stays."""
    classifier(tmp_path / "model.safetensors")
    before = tmp_path / "model.onnx"
    before.write_bytes(b"good")
    monkeypatch.setitem(exporting.TOLERANCES, "float32", -1.0)
    with pytest.raises(RunError, match=r"model\.onnx") as caught:
        sightline.export(tmp_path / "model.safetensors", before, dynamic=(), force=True)
    assert caught.value.status == 1
    assert {path.name for path in tmp_path.iterdir()} == {"model.onnx", "model.safetensors"}
    assert before.read_bytes() == b"good"


@pytest.mark.parametrize("stop", [KeyboardInterrupt, OSError, RuntimeError])
def test_a_failed_export_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: type[BaseException]
) -> None:
    def write(graph: object, path: Path, *args: object) -> None:
        path.write_bytes(b"half")
        raise stop

    before = tmp_path / "model.onnx"
    before.write_bytes(b"good")
    monkeypatch.setattr(exporting, "_write", write)
    with pytest.raises(stop):
        sightline.export(tiny("deit", depths=1), before, force=True)
    assert list(tmp_path.iterdir()) == [before]
    assert before.read_bytes() == b"good"


def test_what_a_killed_export_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left, recent = tmp_path / ".model.onnx.a.tmp", tmp_path / ".model.onnx.b.tmp"
    for folder in (left, recent):
        folder.mkdir()
        (folder / "model.onnx").touch()
    os.utime(left, (0, 0))
    monkeypatch.setattr(exporting, "_write", lambda *args: pytest.fail("written"))
    with pytest.raises(pytest.fail.Exception):
        sightline.export(tiny("deit", depths=1), tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == [recent]


def test_the_model_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("deit", depths=1).train()
    monkeypatch.setattr(exporting, "_write", lambda *args: pytest.fail("written"))
    with pytest.raises(pytest.fail.Exception):
        sightline.export(model, tmp_path / "model.onnx")
    assert model.training


def test_a_package_for_any_size_of_a_small_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rejected before the model is traced."""
    monkeypatch.setattr(exporting, "trace", lambda *args: pytest.fail("traced"))
    with pytest.raises(InputError, match=r"dynamic.* 17 .*16"):
        sightline.export(tiny("deit", depths=1, img_size=16), tmp_path / "model.pt2", dynamic=tuple(AXES))


def test_the_default_axes_of_a_segmenter(tmp_path: Path) -> None:
    """Its images come as they are."""
    classifier(tmp_path / "model.safetensors")
    loaded = replace(sightline.load(tmp_path / "model.safetensors"), task="segmentation")
    assert exporting._default_axes(Path("model.pt2"), loaded) == ("batch", "height", "width")


def test_calibration_at_another_size(tmp_path: Path) -> None:
    classifier(tmp_path / "model.safetensors")
    given = {"dynamic": "none", "img_size": 48, "int8": pictures(tmp_path / "data")}
    done = sightline.export(tmp_path / "model.safetensors", tmp_path / "model.onnx", **given)
    assert done.inputs == (1, 3, 48, 48)
    assert done.accuracy is not None


def test_a_size_that_a_card_cannot_hold(tmp_path: Path) -> None:
    """Rejected before the model is traced."""
    classifier(tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=r"img_size: 9000x9000 .*smaller size"):
        sightline.export(tmp_path / "model.safetensors", tmp_path / "model.onnx", img_size=9000)


def test_a_size_that_a_model_does_not_take(tmp_path: Path) -> None:
    model = timm.create_model("vit_tiny_patch16_224", depth=1, embed_dim=24, img_size=32)
    with pytest.raises(InputError, match=r"cannot be exported .*another img_size"):
        sightline.export(model, tmp_path / "model.onnx", dynamic="batch", img_size=48)


def test_a_fixed_size(tmp_path: Path) -> None:
    """One image at a time inside, any batch outside; the file records its size, and other ones are rejected."""
    model = classifier(tmp_path / "model.safetensors")
    args = [str(tmp_path / "model.safetensors"), str(tmp_path / "model.onnx"), "--dynamic", "none"]
    assert main(["export", *args, "--img-size", "48x40"]) == 0
    loaded = sightline.load(tmp_path / "model.onnx")
    assert loaded.card.input_size == (3, 48, 40)
    assert loaded.transform(Image.new("RGB", (100, 80))).shape == (3, 48, 40)
    x = image(48, 40, batch=3)
    assert_close(loaded.model(x), model(x), 1e-4)
    with pytest.raises(InputError, match="33"):
        loaded.model(image(33, 40))


def test_default_axes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package has one size, an ONNX file any."""
    found = []

    def trace(graph: object, size: tuple[int, ...], axes: tuple[str, ...], device: object) -> None:
        found.append((size, axes))
        raise RuntimeError("far enough")

    monkeypatch.setattr(exporting, "trace", trace)
    for name in ("model.pt2", "model.onnx"):
        with pytest.raises(InputError, match="far enough"):
            sightline.export(tiny("deit", depths=1), tmp_path / name, img_size=(48, 40))
    assert found == [((3, 48, 40), ("batch",)), ((3, 48, 40), ("batch", "height", "width"))]


def test_int8(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    classifier(tmp_path / "model.safetensors")
    data = pictures(tmp_path / "data")
    args = [str(tmp_path / "model.safetensors"), str(tmp_path / "model.onnx"), "--dynamic", "none"]
    assert main(["export", *args, "--int8", str(data)]) == 0
    said = capsys.readouterr()
    assert "accuracy on the calibration images" in said.out
    assert [line.split()[0] for line in said.err.splitlines()] == ["tracing", "writing", "quantizing", "comparing"]
    kinds = {node.op_type for node in onnx.load(str(tmp_path / "model.onnx")).graph.node}
    assert "QuantizeLinear" in kinds
    report = json.loads((tmp_path / "model.onnx.json").read_text())
    assert report["precision"] == "int8"
    assert len(report["accuracy"]) == 2
    assert sightline.load(tmp_path / "model.onnx").classes == CLASSES


def test_half(tmp_path: Path) -> None:
    done = sightline.export(tiny("deit", depths=1), tmp_path / "model.onnx", dynamic=(), half=True)
    assert done.precision == "float16"
    types = {item.data_type for item in onnx.load(str(done.target)).graph.initializer}
    assert onnx.TensorProto.FLOAT16 in types


def test_a_damaged_package_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch._inductor.aoti_load_package", lambda path: pytest.fail("loaded"))
    (tmp_path / "model.pt2").write_bytes(_damaged())
    with pytest.raises(FileError, match=r"model\.pt2.*code"):
        sightline.load(tmp_path / "model.pt2")


def test_features(tmp_path: Path) -> None:
    classifier(tmp_path / "model.safetensors")
    done = sightline.export(tmp_path / "model.safetensors", tmp_path / "maps.onnx", dynamic=(), features=True)
    proto = onnx.load(str(done.target))
    assert [item.name for item in proto.graph.output] == ["map_0", "map_1"]
    with pytest.raises(FileError, match="backbone"):
        sightline.load(done.target)


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ({"target": "model.tflite"}, ".tflite"),
        ({"target": "model.onnx", "dynamic": ("depth",)}, "depth"),
        ({"target": "model.pt2", "int8": "."}, "int8"),
        ({"target": "model.onnx", "img_size": 0}, "img_size"),
        ({"target": "model.onnx", "img_size": (32, 32, 3)}, "img_size"),
        ({"target": "model.onnx", "int8": "nowhere"}, "nowhere"),
        ({"target": "model.onnx", "int8": "empty"}, "empty"),
        ({"target": "taken.onnx"}, "taken.onnx"),
        ({"target": "taken.onnx/model.onnx"}, "taken.onnx"),
    ],
    ids=str,
)
def test_bad_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], shown: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("taken.onnx").touch()
    with pytest.raises(InputError) as caught:
        sightline.export(tiny("deit", depths=1), **arguments)
    assert shown in str(caught.value)


class Branching(nn.Module):
    """Its steps depend on the values of the images, which no graph can have."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean((2, 3)) if x.sum() > 0 else x.amax((2, 3))


def test_a_model_that_cannot_be_exported(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be exported"):
        sightline.export(Branching(), tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"sightline\[export\]"):
        sightline.export(tiny("deit", depths=1), tmp_path / "model.onnx")


def _foreign() -> bytes:
    """An ONNX file that was made by others."""
    value = onnx.helper.make_tensor_value_info
    shape = (1, 3, 4, 4)
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Relu", ["images"], ["output"])], "relu", [value("images", 1, shape)],
        [value("output", 1, shape)],
    )  # fmt: skip
    opset = onnx.helper.make_opsetid("", 20)
    return onnx.helper.make_model(graph, opset_imports=[opset], ir_version=10).SerializeToString()


def _archive(**files: str) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(f"model/{name}.json"), text)  # without the time of writing
    return made.getvalue()


def _damaged() -> bytes:
    """A package whose code has other bytes than were written."""
    return _archive(a_metadata=json.dumps({"exported": json.dumps(FACTS)}), code="x" * 99).replace(b"x" * 9, b"y" * 9)


FACTS = {"size": [3, 32, 32], "dynamic": [], "device": "cpu", "classes": 3, "parameters": 1}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model.onnx", b""),
        ("model.onnx", b"nonsense"),
        ("model.onnx", _foreign()),
        ("model.pt2", b""),
        ("model.pt2", b"nonsense"),
        ("model.pt2", _archive(other="{}")),
        ("model.pt2", _archive(a_metadata='{"exported": "[]"}')),
        ("model.pt2", _archive(a_metadata=json.dumps({"exported": json.dumps(FACTS)}))),
    ],
    ids=["empty_onnx", "text_onnx", "others_onnx", "empty_pt2", "text_pt2", "others_pt2", "facts_list", "only_facts"],
)
def test_foreign_files(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    with pytest.raises(FileError, match=name):
        sightline.load(path)
    path.write_bytes(content)
    with pytest.raises(FileError, match=name):
        sightline.load(path)


@exported
@pytest.mark.parametrize(
    ("key", "old", "new"),
    [
        ("exported", "3, 32, 32", "3, 1e400, 32"),
        ("exported", '"dynamic": [', '"dynamic": [7, '),
        ("exported", '"classes": 3', '"classes": 2'),
        ("classes", '"', '"more", "', ),
        pytest.param("classes", "[", "[" * 9999, id="deep"),
        ("input", "3, 32, 32", "5, 32, 32"),
    ],
)  # fmt: skip
def test_forged_facts(made: tuple[Path, Exported], tmp_path: Path, key: str, old: str, new: str) -> None:
    proto, path = onnx.load(str(made[0] / "model.onnx")), tmp_path / "model.onnx"
    (item,) = (item for item in proto.metadata_props if item.key == key)
    assert old in item.value
    item.value = item.value.replace(old, new, 1)
    path.write_bytes(proto.SerializeToString())
    with pytest.raises((FileError, InputError)) as caught:
        list(sightline.predict(sightline.load(path), Image.new("RGB", (50, 40)), device="cpu"))
    assert "\n" not in str(caught.value)


@exported
def test_a_truncated_file(made: tuple[Path, Exported], tmp_path: Path) -> None:
    content = (made[0] / "model.onnx").read_bytes()
    for length in (100, len(content) // 2, len(content) - 1):
        (tmp_path / "model.onnx").write_bytes(content[:length])
        with pytest.raises(FileError, match=r"model\.onnx"):
            sightline.load(tmp_path / "model.onnx")


ENDS = "inline,none,none,inline"  # what lies between costs the exporter seconds, and is the same


@pytest.mark.slow
def test_windows_for_any_batch_and_size(tmp_path: Path) -> None:
    """Plain and shifted ones, with padding."""
    done = sightline.export(tiny("swin", depths=(0, 2, 0, 0)), tmp_path / "model.onnx")
    assert max(check.difference for check in done.checks) <= 1e-4


def test_a_source_that_is_no_model() -> None:
    with pytest.raises(InputError, match=r"source: expected a run folder, a file of weights or a model; got 3"):
        sightline.export(3, "model.onnx")  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_segmenter_for_any_size(tmp_path: Path) -> None:
    pytest.importorskip("segmentation_models_pytorch", reason="needs the extra `dense`")
    model = Segmenter(
        Model(name="inline_pvt_tiny", args={**PYRAMID, "attention": ENDS}, head="upernet", channels=8), 4
    ).eval()
    done = sightline.export(model, tmp_path / "model.onnx", dynamic=("height", "width"))
    assert max(check.difference for check in done.checks) <= 1e-4


@pytest.mark.slow
def test_a_package_runs_without_sightline(tmp_path: Path) -> None:
    """Compiled for any batch; a process that cannot import sightline gives the same."""
    model = tiny("deit", depths=1)
    done = sightline.export(model, tmp_path / "model.pt2", dynamic=("batch",))
    x = image(batch=3)
    torch.save({"x": x, "want": model(x).detach()}, tmp_path / "data.pt")
    script = (
        "import sys, torch\n"
        "sys.modules['sightline'] = None\n"
        "data = torch.load(sys.argv[1], weights_only=True)\n"
        "(got,) = torch._inductor.aoti_load_package(sys.argv[2])(data['x'])\n"
        "print((got - data['want']).abs().max().item())\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "data.pt"), str(done.target)]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    answer = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path, env=environment)
    assert float(answer.stdout) <= 1e-4
