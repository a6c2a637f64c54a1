"""A linear student learns from its teacher: stages, resumption, the blocks to keep, and what cannot be used."""

import json
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.nn import functional as F

import sightline
from sightline.cli.main import main
from sightline.data.order import Placement
from sightline.data.readers.images import ImagesReader
from sightline.data.splits import Split
from sightline.engine import linearize as engine
from sightline.engine.settings import configure, load_recipe
from sightline.engine.train import train
from sightline.models.attention_error import block_errors
from sightline.tasks.linearize.distiller import Distiller, divergence
from sightline.tasks.linearize.task import Linearization
from sightline.util.errors import FileError, InputError, RunError

ARGS = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 3, "num_heads": 2}
SMALL: dict[str, Any] = {
    "model.args": ARGS, "batch.size": 8, "data.workers": 0, "data.preload_size": 20, "schedule.epochs": 2,
    "schedule.warmup_epochs": 0, "run.device": "cpu", "run.precision": "no", "run.tensorboard": False,
    "run.report": False, "run.eval_every": 1, "run.save_minutes": None,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """images/*.png, images.zip, dev/{0,1,2}/*.png, and teacher.safetensors with sharp attention and three classes."""
    root, rng = tmp_path_factory.mktemp("linearize"), np.random.default_rng(0)
    (root / "images").mkdir()

    def draw(path: Path) -> None:
        Image.fromarray(rng.integers(0, 256, (5, 6, 3), dtype=np.uint8)).resize((24, 20), 3).save(path)

    for i in range(40):
        draw(root / "images" / f"{i}.png")
    with ZipFile(root / "images.zip", "w") as file:
        for path in sorted((root / "images").iterdir()):
            file.write(path, f"inside/{path.name}")
    for name in ("class 0", "class 1", "class 2"):
        (root / "dev" / name).mkdir(parents=True)
        for i in range(4):
            draw(root / "dev" / name / f"{i}.png")
    save_teacher(root / "teacher.safetensors", 3)
    return root


def save_teacher(path: Path, depth: int) -> None:
    torch.manual_seed(0)
    teacher = timm.create_model("vit_tiny_patch16_224", num_classes=3, **{**ARGS, "depth": depth})
    with torch.no_grad():
        for name, parameter in teacher.named_parameters():
            parameter.mul_(12 if "qkv.weight" in name else 3 if parameter.ndim > 1 else 1)
    save_file(teacher.state_dict(), path)


def of_depth(depth: int, folder: Path) -> dict[str, Any]:
    """Changes for a teacher with fewer blocks, which is saved in `folder`."""
    save_teacher(folder / "shallow.safetensors", depth)
    return {"model.args": {**ARGS, "depth": depth}, "model.checkpoint": str(folder / "shallow.safetensors")}


def config_of(folder: Path, recipe: str = "linearize", **values: Any) -> Any:
    given = {
        **SMALL, "model.name": "vit_tiny_patch16_224", "model.checkpoint": str(folder / "teacher.safetensors"),
        "data.images": (str(folder / "images"),),
    }  # fmt: skip
    return configure(load_recipe(recipe), {**given, **values})


def task_of(folder: Path, recipe: str = "linearize", **values: Any) -> Linearization:
    torch.manual_seed(0)
    return Linearization(config_of(folder, recipe, **values), Placement(torch.device("cpu"), 8))


def run(folder: Path, out: Path, **options: Any) -> engine.Linearized:
    return engine.linearize_run(
        "vit_tiny_patch16_224", [str(folder / "images.zip")], checkpoint=str(folder / "teacher.safetensors"), out=out,
        speed=False, changes=SMALL, **options,
    )  # fmt: skip


def test_both_stages_and_what_they_leave(folder: Path, tmp_path: Path) -> None:
    done = run(folder, tmp_path / "run", labelled=str(folder / "dev"), keep=[1])
    assert done.folder == tmp_path / "run"
    assert set(done.scores) == {"agreement", "top1", "top5"}
    assert len(done.errors) == 3
    assert done.errors[1] == 0 or done.errors[1] < min(done.errors[0], done.errors[2])
    assert json.loads((tmp_path / "run" / "linearize.json").read_text())["errors"] == done.errors
    loaded = sightline.load(tmp_path / "run")
    assert [block.attn.mechanism.name for block in loaded.model.blocks] == ["inline", "softmax", "inline"]  # type: ignore[union-attr]
    assert loaded.classes == ("class 0", "class 1", "class 2")
    assert loaded.card.mean == (0.5,) * 3  # type: ignore[attr-defined]
    assert sightline.evaluate(loaded, workers=0)["top1"] == pytest.approx(done.scores["top1"])
    again = run(folder, tmp_path / "run", labelled=str(folder / "dev"), keep=[1])  # complete: nothing is trained
    assert again == done
    with pytest.raises(InputError, match=r"linearize\.keep"):
        run(folder, tmp_path / "run", labelled=str(folder / "dev"), keep=[2])


def test_the_first_stage_changes_attention_alone(folder: Path) -> None:
    task = task_of(folder, "linearize_stage1", **{"linearize.keep": (0,)})
    model = task.model
    assert isinstance(model, Distiller)
    learns = {name for name, parameter in model.student.named_parameters() if parameter.requires_grad}
    assert learns
    assert all(name.startswith(("blocks.1.attn.", "blocks.2.attn.")) for name in learns)
    batch = next(task.batches(0, 0))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 3e-3)
    losses = []
    for _ in range(30):
        losses.append(task.loss(model, batch))
        losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < 0.5 * losses[0]
    values = dict(task.scorer(torch.device("cpu")).evaluate(model, task.evaluation()))
    assert block_errors(values)[0] < 1e-9
    assert 0 <= values["agreement"] <= 100
    assert values["divergence"] > 0
    assert "top1" not in values  # images without labels


@torch.no_grad()
def test_the_loss_is_zero_for_the_teacher_itself(folder: Path) -> None:
    task = task_of(folder, **{"linearize.hidden": 1, "linearize.blocks": 1, "linearize.keep": (0, 1)})
    model = task.model
    assert isinstance(model, Distiller)
    batch = next(task.batches(0, 0))
    assert float(model(batch)) > 1e-4
    model.student.blocks[2].attn = model.attention[2] = model.teacher.calls.attention[2]  # type: ignore[union-attr]
    assert float(model(batch)) == pytest.approx(0, abs=1e-6)


def test_a_compiled_step_is_one_graph(folder: Path, tmp_path: Path) -> None:
    for recipe in ("linearize_stage1", "linearize"):
        task = task_of(folder, recipe, **{"linearize.blocks": 0.1, **of_depth(1, tmp_path)})
        batch = next(task.batches(0, 0))
        want = task.loss(task.model, batch).item()
        task.model.compile(backend="aot_eager", fullgraph=True)
        assert task.loss(task.model, batch).item() == pytest.approx(want, rel=1e-5)
        torch.compiler.reset()


def test_blocks_of_one_kind_are_compiled_once(folder: Path, tmp_path: Path) -> None:
    for recipe, graphs in (("linearize_stage1", 3), ("linearize", 4)):  # teacher, student or attention, error of tokens
        task = task_of(folder, recipe, **{"linearize.blocks": 0.1, **of_depth(2, tmp_path)})
        batch = next(task.batches(0, 0))
        want = task.loss(task.model, batch).item()
        counters.clear()
        for part in task.repeated:
            part.compile(backend="aot_eager", dynamic=False)
        for _ in range(2):
            assert task.loss(task.model, batch).item() == pytest.approx(want, rel=1e-5)
        assert counters["stats"]["unique_graphs"] == graphs
        torch.compiler.reset()


def test_small_crops_and_a_softer_divergence(folder: Path) -> None:
    task = task_of(folder, **{"data.train_size": 8, "linearize.temperature": 2.0})
    batch, (images, _) = next(task.batches(0, 0)), next(task.evaluation())
    assert (batch.shape[2:], images.shape[2:]) == ((8, 8), (16, 16))
    assert task.loss(task.model, batch).isfinite()
    found, wanted = torch.randn(2, 4, 5)
    assert divergence(found, wanted, 2.0) == pytest.approx(4 * float(divergence(found / 2, wanted / 2)), rel=1e-5)


@torch.no_grad()
def test_a_teacher_sees_large_images_at_its_own_size(folder: Path) -> None:
    classes = {"linearize.tokens": 0, "linearize.hidden": 0}
    task = task_of(folder, **{"data.size": 32, "linearize.teacher_size": 16, **classes})
    model, batch = task.model, next(task.batches(0, 0))
    assert isinstance(model, Distiller)
    assert batch.shape[2:] == (32, 32)
    small = F.interpolate(batch, (16, 16), mode="bicubic", antialias=True)
    wanted = model.teacher.model(small)
    temperature = model.loss.temperature
    assert model(batch).item() == pytest.approx(divergence(model.student(batch), wanted, temperature).item(), rel=1e-5)
    found = model.compare(batch)
    torch.testing.assert_close(found[1], wanted.float())
    assert found[2].shape == (3,)
    with pytest.raises(InputError, match=r"linearize\.teacher_size"):
        task_of(folder, **{"linearize.teacher_size": 16})


def test_a_teacher_learns_from_itself_at_another_size_only(folder: Path) -> None:
    softmax = {"linearize.attention": "softmax", "linearize.tokens": 0, "linearize.hidden": 0}
    task = task_of(folder, **{"data.size": 32, "linearize.teacher_size": 16, **softmax})
    assert task.loss(task.model, next(task.batches(0, 0))).item() > 0
    with pytest.raises(InputError, match="what the teacher has"):
        task_of(folder, **{"data.size": 16, "linearize.teacher_size": 16, **softmax})


def test_resumes_with_the_same_bits(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def weights(out: Path) -> dict[str, Tensor]:
        return load_file(next((out / "checkpoints").glob("*/model.safetensors")))

    whole, halves = tmp_path / "whole", tmp_path / "halves"
    train(config_of(folder, **{"run.folder": str(whole)}))
    loss, calls = Linearization.loss, []

    def fail(self: Linearization, model: nn.Module, batch: Tensor) -> Tensor:
        calls.append(batch)
        if len(calls) == 6:
            raise RunError("gone")
        return loss(self, model, batch)

    config = config_of(folder, **{"run.folder": str(halves), "run.save_steps": 1})
    with monkeypatch.context() as patch:
        patch.setattr(Linearization, "loss", fail)
        with pytest.raises(RunError, match="gone"):
            train(config)
    train(config)
    found, want = (load_file(out / "checkpoints" / "best" / "model.safetensors") for out in (halves, whole))
    assert found.keys() == want.keys() == weights(whole).keys()
    assert all(torch.equal(found[key], want[key]) for key in want)


def test_search_keeps_what_helps_most(folder: Path, tmp_path: Path) -> None:
    done = run(folder, tmp_path / "run", search=1)
    assert isinstance(done.kept, tuple)
    assert len(done.kept) == 1
    student = sightline.load(tmp_path / "run").model
    teacher = load_file(folder / "teacher.safetensors")
    (kept,) = done.kept
    assert student.blocks[kept].attn.mechanism.name == "softmax"  # type: ignore[union-attr]
    first = load_file(tmp_path / "run" / "stage1" / "checkpoints" / "best" / "model.safetensors")
    assert not torch.equal(first[f"blocks.{kept}.attn.qkv.weight"], teacher[f"blocks.{kept}.attn.qkv.weight"])


def test_a_student_goes_on_with_all_its_weights(folder: Path, tmp_path: Path) -> None:
    done = run(folder, tmp_path / "run", keep=[1])
    first = load_file(tmp_path / "run" / "checkpoints" / "best" / "model.safetensors")
    again = task_of(folder, **{"linearize.start": str(done.folder), "linearize.keep": (1,)})
    assert all(torch.equal(value, first[key]) for key, value in again.student.state_dict().items())
    other = task_of(folder, **{"linearize.start": str(done.folder), "linearize.keep": (0, 1)})
    teacher, key = load_file(folder / "teacher.safetensors"), "blocks.0.attn.qkv.weight"
    assert torch.equal(other.student.state_dict()[key], teacher[key])
    assert not torch.equal(first[key], teacher[key])
    with pytest.raises(FileError, match="block 0 has inline"):
        task_of(folder, **{"linearize.start": str(done.folder), "linearize.attention": "mala"})
    starts = (str(done.folder / "stage1"), str(done.folder))
    both = task_of(folder, **{"linearize.start": starts, "linearize.keep": (0,)}).student.state_dict()
    assert torch.equal(both["blocks.2.attn.qkv.weight"], first["blocks.2.attn.qkv.weight"])
    assert torch.equal(both["blocks.1.mlp.fc1.weight"], first["blocks.1.mlp.fc1.weight"])
    assert torch.equal(both[key], teacher[key])


def test_images_of_folders_and_zip_files(folder: Path, tmp_path: Path) -> None:
    reader = ImagesReader([str(folder / "images.zip"), str(folder / "images"), str(folder / "dev" / "*" / "0.png")])
    assert len(reader.targets) == 40 + 40 + 3
    source = reader.source(0)
    assert isinstance(source, bytes)
    assert "inside" in reader.name(0)
    assert Split(reader, "several places").name(40).startswith(str(folder / "images"))
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.zip").write_bytes(b"PK no zip")
    with ZipFile(tmp_path / "none.zip", "w") as file:
        file.writestr("readme.txt", "nothing")
    for given, error in (("empty", InputError), ("none.zip", InputError), ("bad.zip", FileError)):
        with pytest.raises(error, match=given):
            ImagesReader([str(tmp_path / given)])
    with pytest.raises(InputError, match="data"):
        ImagesReader([])


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        (["--keep", "13"], "--keep: 13"),
        (["--keep", "3"], "keep"),
        (["--keep", "some"], "--keep"),
        (["--keep", "auto:99"], "--keep"),
        (["--attention", "softmax"], "--attention"),
        (["--data", "empty"], "empty"),
        (["--checkpoint", "other.safetensors"], "other.safetensors"),
        (["--checkpoint", "headless.safetensors", "--eval", "{}/dev"], "classifier"),
        (["--eval", "one"], "violet"),
        (["--search", "9"], "search"),
        (["--set", "linearize.keep=3"], "--keep"),
        (["--attention", "inlined"], "inlined"),
        (["--set2", "linearize.temperature=0"], "linearize.temperature"),
        (["--set2", "linearize.keep=9"], "keep"),
        (["--checkpoint", "headless.safetensors"], "linearize.logits"),
    ],
)
def test_one_line_for_bad_input(
    changes: list[str], word: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "one" / "violet").mkdir(parents=True)
    Image.new("RGB", (20, 20)).save(tmp_path / "one" / "violet" / "0.png")
    state = load_file(folder / "teacher.safetensors")
    save_file({key: value for key, value in state.items() if "head" not in key}, "headless.safetensors")
    save_file({"layer.weight": torch.zeros(3)}, "other.safetensors")
    argv = ["linearize", "vit_tiny_patch16_224", "--out", "run"]
    given = dict(zip(changes[::2], changes[1::2], strict=True))
    usual = {"--checkpoint": f"{folder}/teacher.safetensors", "--data": f"{folder}/images"}
    for option, value in {**usual, **given}.items():
        argv += [option, value.format(folder)]
    for key, value in {**SMALL, "schedule.epochs": 1}.items():
        argv += ["--set", f"{key}={value if isinstance(value, str) else json.dumps(value)}"]
    assert main(argv) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("sightline: ")
    assert word in error
    assert not Path("run", "stage1", "done.json").exists()  # found before the first stage is trained


def test_a_teacher_without_classifier_gives_its_tokens(folder: Path, tmp_path: Path) -> None:
    state = load_file(folder / "teacher.safetensors")
    path = tmp_path / "headless.safetensors"
    save_file({key: value for key, value in state.items() if "head" not in key}, path)
    with pytest.raises(InputError, match=r"linearize\.logits"):
        task_of(folder, **{"model.checkpoint": str(path)})
    task = task_of(folder, **{"model.checkpoint": str(path), "linearize.logits": 0})
    assert task.loss(task.model, next(task.batches(0, 0))).isfinite()
    values = dict(task.scorer(torch.device("cpu")).evaluate(task.model, task.evaluation()))
    assert 0 < values["agreement"] <= 100
