"""Training from a configuration to a run folder, in this process."""

import doctest
import errno
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import sightline
from sightline.engine.checkpoint import SaveError
from sightline.engine.optimize import make_optimizer
from sightline.engine.run_folder import RunFolder
from sightline.engine.settings import configure as resolve
from sightline.engine.settings import load_recipe, to_yaml
from sightline.engine.train import train as sightline_train
from sightline.engine.trainer import NonFiniteError, Trainer
from sightline.tasks.card import ModelCard
from sightline.tasks.classification.loss import Criterion
from sightline.tasks.create import create
from sightline.tasks.dense.backbone import Backbone, WithBackbone
from sightline.tasks.dense.config import DenseModel
from sightline.util import device
from sightline.util.errors import InputError, RunError
from tests.engine.tiny import CLASSES, RECIPE, configure, make_images, metrics, train, weights, write_recipe


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_images(tmp_path_factory.mktemp("images"))


def test_a_run_leaves_its_folder(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert train(configure(images, out)) == out
    first, last = metrics(out)
    assert (first["epoch"], first["step"], last["epoch"], last["step"]) == (1, 4, 2, 8)
    assert {"train_loss", "lr", "top1", "top5", "val_loss", "ece"} <= last.keys()
    assert json.loads((out / "classes.json").read_text()) == list(CLASSES)
    counts = json.loads((out / "confusion.json").read_text())["counts"]
    assert sum(map(sum, counts)) == 15
    assert json.loads((out / "versions.json").read_text())["torch"] == torch.__version__
    assert json.loads((out / "done.json").read_text())["step"] == 8
    for name in ("last", "best"):
        with safe_open(out / "checkpoints" / name / "model.safetensors", "pt") as file:
            card = ModelCard.from_metadata(file.metadata())
        assert card is not None
        assert card.classes == CLASSES
        assert card.input_size == (3, 16, 16)


def test_train_as_a_library_function(images: Path, tmp_path: Path) -> None:
    """A recipe by its path, with data, model and folder as arguments and overrides of both forms."""
    recipe = write_recipe(tmp_path / "tiny.yaml")
    run = sightline_train(
        recipe, images, model="inline_deit_tiny", out=tmp_path / "run", schedule={"epochs": 1}, **{"batch.size": 12}
    )
    assert (run.folder, run.metric, len(run.history)) == (tmp_path / "run", "top1", 1)
    assert run.best == run.history[0]["top1"]
    assert run.history[0]["step"] == 3
    config = resolve(load_recipe(str(run.folder / "config.yaml")))
    assert (config.batch.size, config.schedule.warmup_epochs, config.run.device) == (12, 1, "cpu")
    again = sightline_train(config, out=tmp_path / "again", model={"drop_path": 0.0})
    assert resolve(load_recipe(str(again.folder / "config.yaml"))).model.drop_path == 0


@pytest.mark.slow
def test_the_example(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the docstring, on 36 images in a folder `pictures`."""
    (tmp_path / "pictures").symlink_to(images)
    monkeypatch.chdir(tmp_path)
    finder = doctest.DocTestFinder(recurse=False)
    (example,) = finder.find(sightline_train, globs={"sightline": SimpleNamespace(train=sightline_train)})
    assert example.examples
    assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example).failed == 0


@pytest.mark.parametrize(
    ("arguments", "name", "value"),
    [
        ({"recipe": "quik"}, "recipe", "'quik'"),
        ({"optim": {"lr": -1}}, "optim.lr", "-1"),
        ({"optim.lrr": 1}, "optim.lrr", "'optim.lr'"),
        ({"recipe": "imagenette"}, "imagenette", "data"),
        ({"data": "/nowhere"}, "/nowhere", ""),
    ],
)
def test_bad_arguments_are_one_line(
    arguments: dict[str, Any], name: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError) as error:  # noqa: PT011 - an InputError or a FileError
        sightline_train(**arguments)
    assert name in str(error.value)
    assert value in str(error.value)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())  # no folder of a run that never began


def test_a_batch_that_cannot_be_shared_is_rejected(images: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"batch\.size=16 .* multiple of 3"):
        train(configure(images, tmp_path / "run", batch__size=16, batch__accumulate=3))


@pytest.mark.slow
def test_it_learns(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    plain = {"auto": None, "mixup": 0.0, "cutmix": 0.0, "erase": 0.0, "scale": [0.9, 1.0]}
    train(configure(images, out, augment=plain, schedule__epochs=12, ema__decay=0.0))
    assert metrics(out)[-1]["top1"] > 90


def test_same_seed_same_weights_other_seed_other_weights(images: Path, tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        train(configure(images, tmp_path / name, run__seed=seed))
    assert weights(tmp_path / "a") == weights(tmp_path / "b") != weights(tmp_path / "c")
    assert metrics(tmp_path / "a") == metrics(tmp_path / "b")


def test_loader_processes_change_nothing(images: Path, tmp_path: Path) -> None:
    for workers in (0, 2):
        train(configure(images, tmp_path / str(workers), data__workers=workers, schedule__epochs=1))
    assert weights(tmp_path / "0") == weights(tmp_path / "2")


def test_parts_of_an_update_add_up(images: Path, tmp_path: Path) -> None:
    exact = {"model__drop_path": 0.0, "augment": {"scale": [0.5, 1.0]}, "schedule__epochs": 1, "ema__decay": 0.0}
    for parts in (1, 4):
        train(configure(images, tmp_path / str(parts), batch__accumulate=parts, **exact))
    one, four = (load_file(tmp_path / name / "checkpoints/last/model.safetensors") for name in ("1", "4"))
    for key, value in one.items():
        torch.testing.assert_close(value, four[key], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"data__preload": True},
        {"data__preload": True, "data__preload_size": [24, 20], "augment": {"crop": "padded", "color_jitter": 0.3}},
        {"augment": {"crop": "center", "hflip": 0.0, "mixup": 0.4, "mix_mode": "elem", "mix_off_epoch": 1}},
        {"augment": {"crop": "padded", "vflip": 0.5, "repeats": 3, "cutmix": 1.0, "mix_mode": "pair"}},
        {"optim__clip": 1.0, "optim__layer_decay": 0.7, "optim__name": "lamb", "model__grad_checkpointing": True},
        {"optim__clip": 0.1, "optim__clip_mode": "agc", "optim__name": "sgd", "model__channels_last": True},
        {"optim__name": "muon", "optim__args": {"fallback_list": ["head.*"]}, "augment": {"progressive": [0.5, 1.0]}},
        {"run__precision": "bf16", "loss__name": "bce", "ema__decay": 0.99, "ema__warmup": True, "ema__batch": 4},
        {"optim__lr_batch": 16, "schedule__scale_all": True, "schedule__cooldown_epochs": 1, "run__eval_every": 2},
        {"data__source": "synthetic", "data__path": None, "run__max_steps": 3},
        {"model__name": "test_resnet", "model__args": {}, "data__size": 32, "model__drop_path": 0.0},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_options(images: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    train(configure(images, tmp_path / "run", **changes))
    lines = metrics(tmp_path / "run")
    assert all(line["train_loss"] == line["train_loss"] for line in lines)
    if "optim__lr_batch" in changes:
        assert [line["epoch"] for line in lines if "top1" in line] == [2, 3]
        assert lines[0]["lr"] < 3e-3 * 8 / 16


@pytest.mark.slow
def test_a_cpu_without_bfloat16(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Full precision, which is many times as fast there; with bfloat16 a run is another one."""
    found, said = {}, {}
    for name, precision, there in (("full", "no", False), ("without", "bf16", False), ("with", "bf16", True)):
        monkeypatch.setattr(device, "_cpu_has_bfloat16", lambda there=there: there)
        train(configure(images, tmp_path / name, run__precision=precision, schedule__epochs=1))
        found[name] = load_file(tmp_path / name / "checkpoints/last/model.safetensors")
        said[name] = "this CPU has no bfloat16" in capsys.readouterr().out
    for key, value in found["full"].items():
        assert torch.equal(found["without"][key], value), key
    assert any(not torch.equal(found["with"][key], value) for key, value in found["full"].items())
    assert said == {"full": False, "without": True, "with": False}


@pytest.mark.slow
@pytest.mark.parametrize("key", ["model__grad_checkpointing", "model__channels_last"])
def test_less_memory_is_the_same_run(images: Path, tmp_path: Path, key: str) -> None:
    plain = {"model__drop_path": 0.0, "schedule__epochs": 1, "optim__name": "sgd"}
    for on in (False, True):
        train(configure(images, tmp_path / str(on), **{key: on}, **plain))
    one, other = (load_file(tmp_path / name / "checkpoints/last/model.safetensors") for name in ("False", "True"))
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], rtol=1e-5, atol=1e-6)


def test_layers_decay_from_the_last_to_the_first(images: Path, tmp_path: Path) -> None:
    config = configure(images, tmp_path, optim__layer_decay=0.5)
    model = create("inline_deit_tiny", {**RECIPE["model"]["args"], "img_size": 16})
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    scale = {names[id(p)]: group["lr_scale"] for group in make_optimizer(model, config).param_groups
             for p in group["params"]}  # fmt: skip
    last = scale["head.weight"]
    first, second = (scale[f"blocks.{i}.mlp.fc1.weight"] for i in (0, 1))
    assert second == pytest.approx(2 * first)
    assert scale["patch_embed.proj.weight"] < first < second < last == 1.0


def test_layers_of_a_model_that_has_none(images: Path, tmp_path: Path) -> None:
    class Whole(WithBackbone):
        def __init__(self) -> None:
            super().__init__()
            self.backbone = Backbone(DenseModel(name="resnet18"))

    with pytest.raises(InputError, match=r"^optim\.layer_decay: not for backbones of timm; leave it out$"):
        make_optimizer(Whole(), configure(images, tmp_path, optim__layer_decay=0.5))


def test_distillation_follows_the_teacher(images: Path, tmp_path: Path) -> None:
    train(configure(images, tmp_path / "teacher", schedule__epochs=1))
    teacher = tmp_path / "teacher/checkpoints/best/model.safetensors"
    small = {"args": {**RECIPE["model"]["args"], "img_size": 16}, "checkpoint": str(teacher)}
    for mode in ("soft", "hard"):
        distill = {"teacher": "inline_deit_tiny", "mode": mode, "weight": 1.0, **small}
        train(configure(images, tmp_path / mode, distill=distill, schedule__epochs=1))
    assert weights(tmp_path / "soft") != weights(tmp_path / "hard")


def test_finetuning_starts_from_the_checkpoint(images: Path, tmp_path: Path) -> None:
    train(configure(images, tmp_path / "first"))
    start = tmp_path / "first/checkpoints/best/model.safetensors"
    train(configure(images, tmp_path / "second", model__checkpoint=str(start), optim__lr=0.0, schedule={"epochs": 1}))
    before, after = (load_file(p) for p in (start, tmp_path / "second/checkpoints/last/model.safetensors"))
    assert all(torch.equal(before[key], after[key]) for key in before)


class Poisoned(Criterion):
    """A loss that is nan in the third update of the run."""

    calls = 0

    def __call__(self, *arguments: Any) -> torch.Tensor:
        type(self).calls += 1
        loss = super().__call__(*arguments)
        return loss * float("nan") if type(self).calls == 3 else loss


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    Poisoned.calls = 0
    monkeypatch.setattr("sightline.tasks.classification.task.Criterion", Poisoned)


@pytest.mark.usefixtures("poison")
def test_nonfinite_loss_stops_with_its_place(images: Path, tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError, match=r"step 3, epoch 1, batch 3: the loss is not finite"):
        train(configure(images, tmp_path / "run", run__save_steps=1))
    record = json.loads((tmp_path / "run/checkpoints/last/state.json").read_text())
    assert record["step"] == 2
    good = load_file(tmp_path / "run/checkpoints/last/model.safetensors")
    assert all(value.isfinite().all() for value in good.values())


@pytest.mark.usefixtures("poison")
def test_nonfinite_batches_can_be_skipped(images: Path, tmp_path: Path) -> None:
    train(configure(images, tmp_path / "run", run__skip_nonfinite=1))
    assert metrics(tmp_path / "run")[-1]["skipped_batches"] == 1
    final = load_file(tmp_path / "run/checkpoints/last/model.safetensors")
    assert all(value.isfinite().all() for value in final.values())


def test_nonfinite_gradient_counts_too(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Steep(Criterion):
        def __call__(self, logits: torch.Tensor, *rest: Any) -> torch.Tensor:
            return (logits - logits).abs().sqrt().sum()  # 0, with an infinite slope

    monkeypatch.setattr("sightline.tasks.classification.task.Criterion", Steep)
    with pytest.raises(NonFiniteError, match="step 1, epoch 1, batch 1: the gradient is not finite"):
        train(configure(images, tmp_path / "run"))


def unfinished(images: Path, out: Path, **changes: Any) -> Any:
    """A run that has saved its last checkpoint but is not marked complete, and the configuration to go on with."""
    config = configure(images, out, **changes)
    train(config)
    (out / "done.json").unlink()
    return config


def test_what_ended_before_its_report_writes_it_later(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    config = unfinished(images, out)
    before = metrics(out)
    with (out / "metrics.jsonl").open("a") as file:  # as logged before a kill, and to be logged again
        file.write(json.dumps({**before[-1], "epoch": 3}) + "\n")
    train(config)
    assert (out / "done.json").exists()
    assert metrics(out) == before


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_updates_that_end_within_an_epoch(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ended before the evaluation or before the report, a run has one line per epoch, and with more updates too."""
    limited = {"run__max_steps": 3, "run__save_steps": 1}
    train(configure(images, tmp_path / "whole", **limited))
    for name in ("_finish_epoch", "_evaluate", "_log"):
        with monkeypatch.context() as patch:
            patch.setattr(Trainer, name, interrupt)
            with pytest.raises(KeyboardInterrupt):
                train(configure(images, tmp_path / name, **limited))
        train(configure(images, tmp_path / name, **limited))
        assert metrics(tmp_path / name) == metrics(tmp_path / "whole")
        assert weights(tmp_path / name) == weights(tmp_path / "whole")
    unfinished(images, tmp_path / "run", **limited)
    train(configure(images, tmp_path / "run", **limited))
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")
    (tmp_path / "run/done.json").unlink()
    train(configure(images, tmp_path / "run"))
    assert [line["epoch"] for line in metrics(tmp_path / "run")] == [1, 2]


def test_what_ended_before_its_first_checkpoint_may_be_changed(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(ValueError, match=r"batch\.size=999 is more than"):
        train(configure(images, out, batch__size=999))
    out.mkdir(exist_ok=True)
    (out / "config.yaml").write_text(to_yaml(configure(images, out, optim__lr=0.5)))
    train(configure(images, out, schedule__epochs=1))
    assert resolve(load_recipe(str(out / "config.yaml"))).optim.lr == RECIPE["optim"]["lr"]


def test_no_checkpoint_can_be_read(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    config = unfinished(images, out)
    for name in ("last", "previous"):
        path = out / "checkpoints" / name / "model.safetensors"
        if path.exists():
            path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(ValueError, match=r"run\.folder: .* holds no checkpoint"):
        train(config)
    assert len(metrics(out)) == 2


@pytest.mark.parametrize("damage", ["cut off", "removed"])
def test_the_best_weights_are_written_again(
    images: Path, tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    config = unfinished(images, out)
    best = out / "checkpoints" / "best" / "model.safetensors"
    if damage == "removed":
        best.unlink()
    else:
        best.write_bytes(best.read_bytes()[:300])
    shutil.copytree(out, tmp_path / "complete")
    shutil.rmtree(out / "checkpoints" / "last")  # the one before is from the first epoch
    train(config)
    said = f"{best}: the best weights are damaged or missing; those of the next evaluation replace it"
    assert said in capsys.readouterr().out
    assert load_file(best)
    train(configure(images, tmp_path / "complete"))
    assert "missing; those of the end are in checkpoints/last" in capsys.readouterr().out


@pytest.mark.parametrize(("name", "sized"), [("vit_tiny_patch16_224", True), ("resnet18", False)])
def test_other_models_at_the_size_of_the_images(images: Path, tmp_path: Path, name: str, sized: bool) -> None:
    data = {"path": str(images), "size": 32, "workers": 0}
    changes: dict[str, Any] = {"data": data, "model": {"name": name}, "batch": {"size": 2}, "run.max_steps": 1}
    folder = train(resolve(RECIPE, {**changes, "run.folder": str(tmp_path / "run")}))
    arguments = sightline.load(folder).card.arguments
    assert arguments == {"num_classes": 3, **({"img_size": 32} if sized else {})}
    assert dict(sightline.evaluate(folder, limit=1, workers=0))["top1"] >= 0


def test_what_is_not_evaluated_is_said(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = Path(shutil.copytree(images, tmp_path / "data"))
    for name in CLASSES[1:]:
        shutil.rmtree(data / "val" / name)
    (data / "val" / CLASSES[0] / "0.png").write_bytes(b"no image")
    changes = {"data__on_error": "skip", "data__preload": True, "schedule__epochs": 1, "schedule__warmup_epochs": 0}
    folder = train(configure(data, tmp_path / "run", run__report=True, **changes))
    said = capsys.readouterr().out
    assert f"{data}/val: no images of class green, red, which cannot be scored" in said
    assert f"{data}/val: 4 images decoded" in said
    assert "skipped: 0 batches, 1 unreadable image\n" in said
    assert "not complete" not in said
    assert len(sightline.evaluate(folder, workers=0, on_error="skip").per_class) == 3


def test_other_data_are_rejected(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    unfinished(images, out)
    fewer = make_images(tmp_path / "fewer", train=24)
    with pytest.raises(InputError, match=r"data\.path: .*72 images of 3 classes"):
        train(configure(fewer, out))
    renamed = make_images(tmp_path / "renamed")
    for split in renamed.iterdir():
        (split / CLASSES[0]).rename(split / "zebra")
    with pytest.raises(InputError, match=r"data\.path: .*36 images of 3 classes"):
        train(configure(renamed, out))
    with pytest.raises(ValueError, match=r"was started with another run\.seed"):
        train(configure(images, out, run__seed=123))


def test_a_configuration_that_cannot_be_read(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    config = unfinished(images, out)
    (out / "config.yaml").write_text("data: [1, 2]\n")
    with pytest.raises(ValueError, match="configuration, which cannot be read"):
        train(config)


def test_a_killed_loader_worker_is_one_line(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: Any) -> None:
        raise RuntimeError("DataLoader worker (pid 1) is killed by signal: Killed. ")

    monkeypatch.setattr("sightline.engine.trainer.Trainer.fit", killed)
    with pytest.raises(RunError, match=r"worker \(pid 1\) is killed by signal: Killed; .*data.workers"):
        train(configure(images, tmp_path / "run"))


def test_weights_of_a_run_folder(images: Path, tmp_path: Path) -> None:
    train(configure(images, tmp_path / "first", schedule__epochs=1))
    frozen = {"optim__lr": 0.0, "schedule": {"epochs": 1}, "ema__decay": 0.0}
    train(configure(images, tmp_path / "second", model__checkpoint=str(tmp_path / "first"), **frozen))
    files = [tmp_path / "first/checkpoints/best", tmp_path / "second/checkpoints/last"]
    before, after = (load_file(folder / "model.safetensors") for folder in files)
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_a_full_disk_between_checkpoints(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: RunFolder, values: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(self.path / "metrics.jsonl"))

    monkeypatch.setattr(RunFolder, "log", full)
    with pytest.raises(SaveError, match=r"metrics.jsonl could not be written \(no space left on device\); the last"):
        train(configure(images, tmp_path / "run"))
