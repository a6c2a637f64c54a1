"""`sightline train` as a command: help, configuration, errors of one line, and a whole short run."""

import errno
import json
import os
from pathlib import Path

import pytest
import yaml

from sightline.cli.main import main
from sightline.data.images import ImageError, load_image
from sightline.engine.records import read_config
from sightline.engine.settings import all_keys, load_recipe, parse, recipe_names, to_yaml
from sightline.engine.settings import configure as resolve
from sightline.models.weights.reader import read_weights
from sightline.util.documents import parse_yaml
from sightline.util.errors import FileError
from tests.engine import warm
from tests.engine.tiny import RECIPE, command, make_images, run, write_recipe

HUGE = str(10**60)
MANY = str((os.cpu_count() or 1) + 1)  # more processes than torch thinks wise


def fail(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["train", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("sightline: error: ")
    assert err.count("\n") == 1
    return err


def test_help_lists_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--help"]) == 0
    shown = capsys.readouterr().out
    for key in all_keys():
        assert f"--{key} " in shown


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--optm.lr", "1"], ["no key 'optm.lr' in the configuration; did you mean 'optim.lr'?"]),
        (["--optim.lrr=1"], ["no key 'optim.lrr' in the configuration; did you mean 'optim.lr'?"]),
        (["--confg", "quick"], ["did you mean 'config'?"]),
        (["--task", "segmentation"], ["task: "]),
        (["--config", "imagenete"], ["no recipe 'imagenete'; did you mean 'imagenette'?"]),
        (["--config", ""], ["no recipe ''"]),
        (["--config", "imagenette"], ["the recipe imagenette needs data"]),
        (["--optim.lr", "fast"], ["optim.lr: ", "got 'fast'"]),
        (["--optim.lr", "-1"], ["optim.lr: ", "got -1"]),
        (["--batch.size", "1.5"], ["batch.size: ", "got 1.5"]),
        (["--run.precision", "bf61"], ["did you mean 'bf16'?"]),
        (["--data.preload", "maybe"], ["data.preload: ", "got 'maybe'"]),
        (["--augment.scale", "[0.1]"], ["augment.scale", "got [0.1]"]),
        (["--augment.scale", "[0.0, 1]"], ["augment.scale: ", "got 0.0"]),
        (["--optim.lr", "true"], ["optim.lr: ", "got True"]),
        (["--model.args", "3"], ["model.args: ", "got 3"]),
        (["--run.device", "gpu"], ["got 'gpu'; did you mean 'cuda'?"]),
        (["--run.device", "cuda:1"], ["run.device: expected cuda, with the GPU in CUDA_VISIBLE_DEVICES; got 'cuda:1'"]),
        (["--optim.lr", "inf"], ["optim.lr: ", "got 'inf'"]),
        (["--optim.lr", "nan"], ["optim.lr: ", "got 'nan'"]),
        (["--optim.layer_decay", "0"], ["optim.layer_decay: ", "got 0"]),
        (["--optim.clip", "0"], ["optim.clip: ", "got 0"]),
        (["--ema.decay", "1"], ["ema.decay: ", "got 1"]),
        (["--schedule.epochs", "0"], ["schedule.epochs: ", "got 0"]),
        (["--schedule.warmup_epochs", "9"], ["schedule.warmup_epochs: 9"]),
        (["--augment.scale", "[1.0, 0.5]"], ["augment.scale: [1, 0.5] is reversed; give [0.5, 1]"]),
        (["--augment.ratio", "[2, 0.5]"], ["augment.ratio: [2, 0.5] is reversed; give [0.5, 2]"]),
        (["--augment.auto", "ranf-m9"], ["augment.auto: ", "'ranf-m9'"]),
        (["--augment.auto", "rand-mX", "--data", "/nowhere"], ["augment.auto: ", "'rand-mX'"]),  # before data is read
        (["--run.seed", HUGE], ["run.seed: ", "got 1000"]),
        (["--batch.size", HUGE], ["batch.size: ", "got 1000"]),
        (["--data.workers", "99999"], ["data.workers: ", "got 99999"]),
        (["--data.size", "99999"], ["data.size", "got 99999"]),
        (["--optim.betas", "[0.9]"], ["optim.betas: ", "got [0.9]", "[0.9, 0.999]"]),
        (["--optim.betas", "[]"], ["optim.betas: ", "got []"]),
        (["--optim.betas", "[0.9, 0.9, 0.9]"], ["optim.betas: ", "adamw", "[0.9, 0.999]"]),
        (["--optim.betas", "[0.9, 0.9]", "--optim.name", "sgd"], ["optim.betas: ", "sgd"]),
        (["--optim.args", "{foo: 1}"], ["optim.args: ", "foo"]),
        (["--optim.args", "{fused: true, foreach: true}"], ["optim.args: ", "foreach"]),
        (["--optim.args", "{lr: 1}"], ["optim.args: ", "optim.lr"]),
        (["--optim.name", "x" * 99999], ["optim.name: ", "xxx...xxx"]),
        (["--loss.name", "bce # x"], ["loss.name: ", "got 'bce # x'"]),
        (["--data", "hfds/"], ["data.path: ", "hfds/"]),
        (["--batch.size", "0"], ["batch.size: ", "got 0"]),
        (["--batch.size", ""], ["batch.size: ", "got ''"]),
        (["--data.workers", "-1"], ["data.workers: ", "got -1"]),
        (["--run.seed", str(2**63)], ["run.seed: ", "got 9223372036854775808"]),
        (["--model.args", "{num_classes: 5}"], ["num_classes=5, but the data has 10 classes"]),
        (["--model.args", "{in_chans: 4}"], ["in_chans=4, but images are read with 3 channels or 1"]),
        (["--model.args", "{img_size: 64}"], ["img_size=64, but data.size=28; leave img_size out"]),
        (["--model.compile_mode", "max-autotun"], ["did you mean 'max-autotune'?"]),
        (["--model.checkpoint", "."], [".: no weights in it; give a file, or a run folder"]),
        (["--distill.teacher", "resnet19"], ["distill.teacher: no model 'resnet19'; did you mean 'resnet18'?"]),
        (["--distill.checkpoint", "x.pth"], ["there is no teacher for it; name one in distill.teacher"]),
        (["--out", ""], ["run.folder: the path is empty"]),
        (["--out", "/proc/run"], ["run.folder: nothing can be written to /proc/run"]),
        (["--data", ""], ["data.path: the path is empty"]),
        (["--data", "/nowhere"], ["/nowhere: "]),
        (["--model", "inline_deit_tiy", "--model.args", "{}"], ["did you mean 'inline_deit_tiny'?"]),
        (["--model", "inline_deit_tiny", "--model.args", "{depth: 3}"], ["did you mean 'depths'?"]),
        (["--optim.name", "adamv"], ["did you mean 'adam"]),
        (["--batch.size", "100000"], ["batch.size=100000 is more than the 10000 examples for training"]),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str],
    words: list[str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--run.device", "cpu", "--data.preload", "false", *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith("sightline: error: ")
    assert all(word in err for word in words), err
    assert err.count("\n") == 1
    assert len(err) < 1000
    assert not list(tmp_path.iterdir())  # nothing is left behind


def test_no_gpu_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    err = fail(capsys, "--run.device", "cuda")
    assert "run.device: cuda cannot be used" in err
    assert "give cpu or auto" in err


def test_a_teacher_that_cannot_be_downloaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, pretrained: bool, **options: object) -> None:
        raise OSError("no connection")

    images = make_images(tmp_path / "images")
    recipe = write_recipe(tmp_path / "tiny.yaml")
    monkeypatch.setattr("timm.create_model", fail)
    arguments = ["--config", str(recipe), "--data", str(images), "--out", str(tmp_path / "run")]
    assert main(["train", *arguments, "--model.pretrained", "true", "--model.args", "{}"]) == 2
    assert "cannot be downloaded" in (err := capsys.readouterr().err)
    assert "model.checkpoint" in err


@pytest.mark.slow
@pytest.mark.parametrize("more", [["--run.precision", "bf16", "--data.workers", MANY], ["--model", "test_resnet"]])
def test_libraries_do_not_warn(tmp_path: Path, more: list[str]) -> None:
    """Neither while they are imported, in a fresh process, nor later."""
    images = make_images(tmp_path / "images")
    fresh = "--run.precision" in more
    recipe = write_recipe(
        tmp_path / "tiny.yaml",
        schedule={"epochs": 1},
        data={"size": 32},
        model={"args": {} if "--model" in more else RECIPE["model"]["args"], "drop_path": 0.0},
        run={"report": fresh, "tensorboard": fresh},
    )
    words = command(recipe, images, tmp_path / "run", *more)
    done = run(words) if fresh else warm.run(words[3:])
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_unreadable_files_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the system answers for a file of mode 000; the superuser, who may run this, can read such a file."""
    images = make_images(tmp_path / "images")
    recipe = write_recipe(tmp_path / "tiny.yaml")
    really = os.open

    def closed(file: object, *arguments: object, **options: object) -> object:
        if str(file).endswith(("red/3.png", "closed.yaml")):
            raise PermissionError(errno.EACCES, "Permission denied", str(file))
        return really(file, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("os.open", closed)
    arguments = ["--config", str(recipe), "--data", str(images), "--out", str(tmp_path / "run")]
    assert main(["train", *arguments]) == 2
    err = capsys.readouterr().err
    assert "red/3.png: cannot be read (Permission denied)" in err
    assert err.count("\n") == 1
    with pytest.raises(ImageError, match=r"red/3\.png: cannot be read \(Permission denied\)$"):
        load_image(images / "train/red/3.png")
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(FileError, match="permission"):
        read_weights(recipe)
    recipe.rename(tmp_path / "closed.yaml")
    assert main(["train", "--config", str(tmp_path / "closed.yaml")]) == 2
    assert "closed.yaml: permission denied" in capsys.readouterr().err


def test_wrong_recipes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "mine.yaml"
    for text, message in (
        ("optim: {lrr: 1}", "no key 'optim.lrr' in the configuration; did you mean 'optim.lr'?"),
        ("lr: 1", "no key 'lr' in the configuration; did you mean 'optim.lr'?"),
        ("optim: 3", "optim: "),
        ("[1, 2]", "not a configuration"),
        ("a: [", "not YAML"),
        ("base: nothing", "no recipe 'nothing'"),
        ("!!python/object/apply:os.system [echo]", "not YAML"),
    ):
        recipe.write_text(text)
        assert message in fail(capsys, "--config", str(recipe))


def test_print_config_is_a_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--config", "imagenette", "--optim.lr", "1e-4", "--data", "x", "--print_config"]) == 0
    shown = capsys.readouterr().out
    assert yaml.safe_load(shown)["optim"]["lr"] == 1e-4
    assert "{" not in shown.replace("{}", "")  # one style: one key per line, lists in brackets
    assert "\n- " not in shown
    (tmp_path / "again.yaml").write_text(shown)
    assert to_yaml(resolve(load_recipe(str(tmp_path / "again.yaml")))) == shown


@pytest.mark.parametrize(
    "path",
    ["runs/hash #1", "colon: x", "<b>x</b>", "2024", "1e3", "yes", "trailing ", "[a]", "null", "a\nb\n", "!!x", "*a",
     "~", "'q'", "{a: 1}", "- x", "%x"],
)  # fmt: skip
def test_paths_are_what_was_typed(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--out", path, "--data", path, "--print_config"]) == 0
    printed = capsys.readouterr().out
    for read in (yaml.safe_load, parse_yaml):
        shown = read(printed)
        assert (shown["run"]["folder"], shown["data"]["path"]) == (path, path)


@pytest.mark.parametrize(
    ("more", "model"),
    [([], "soft_tiny"), (["--data", "x"], "inline_conv_small"), (["--data.path", "null"], "inline_conv_small"),
     (["--config", "imagenette", "--data", "x"], "inline_swin_tiny")],
)  # fmt: skip
def test_photographs_have_their_recipe(more: list[str], model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *more, "--print_config"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["model"]["name"] == model


@pytest.mark.parametrize(("images", "told"), [(2000, True), (30, False)])
def test_few_photographs(
    tmp_path: Path, images: int, told: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sightline.engine.train.FEW", images)
    small = "{embed_dims: 8, num_heads: [1, 1, 1, 1], conv_depths: [1, 1, 1, 0], depths: [0, 0, 1, 1]}"
    words = ["--data", str(make_images(tmp_path / "images")), "--out", str(tmp_path / "run"), "--model.args", small]
    small_run = ["--run.max_steps", "1", "--batch.size", "8", "--data.size", "32", "--run.report", "false"]
    assert main(["train", *words, *small_run, "--run.device", "cpu", "--data.workers", "0"]) == 0
    assert ("--config finetune starts from a trained model" in capsys.readouterr().out) == told


@pytest.mark.parametrize(
    ("text", "value"), [("1e-3", 1e-3), ("010", 10), ("[1, -2.5e1]", [1, -25.0]), ("1:30", "1:30")]
)
def test_numbers_are_what_was_typed(text: str, value: object) -> None:
    assert parse_yaml(text) == parse(text) == value


def test_a_run_is_where_it_was_sent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images, recipe = make_images(tmp_path / "a: b #1"), write_recipe(tmp_path / "tiny #2.yaml", run={"report": True})
    out = tmp_path / "runs/hash #1: <b>x\n"
    more = ["--run.max_steps", "1", "--data", str(images), "--out", str(out)]
    assert main(["train", "--config", str(recipe), *more]) == 0
    assert {"config.yaml", "done.json", "report.html"} <= {file.name for file in out.iterdir()}
    assert "<b>x" not in (out / "report.html").read_text()
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [out.name]
    assert read_config(out)["data"]["path"] == str(images)


def test_every_recipe_resolves() -> None:
    names = recipe_names()
    assert {"quick", "imagenette", "cifar10", "finetune"} <= set(names)
    for name in names:
        assert yaml.safe_load(to_yaml(resolve(load_recipe(name))))


def test_a_base_lies_below(tmp_path: Path) -> None:
    (tmp_path / "low.yaml").write_text("optim: {lr: 1.0, clip: 2.0}\nmodel: {args: {depths: 3}}")
    (tmp_path / "high.yaml").write_text("base: low.yaml\noptim: {lr: 0.5}\nmodel: {args: {}}")
    config = resolve(load_recipe(str(tmp_path / "high.yaml")))
    assert (config.optim.lr, config.optim.clip, config.model.args) == (0.5, 2.0, {})
    (tmp_path / "low.yaml").write_text("base: high.yaml")
    with pytest.raises(ValueError, match="does not lead to a recipe"):
        load_recipe(str(tmp_path / "high.yaml"))


@pytest.mark.slow
def test_a_run_and_its_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    images = make_images(tmp_path / "images")
    recipe = write_recipe(tmp_path / "tiny.yaml", run={"report": True, "tensorboard": True})
    for folder in ("runs/tiny", "runs/tiny-2"):
        assert main(["train", "--config", str(recipe), "--data", str(images), "--run.log_every", "2"]) == 0
        shown = capsys.readouterr().out
        assert "epoch 2/2, update 4/4: " in shown
        assert "images/s, loss" in shown
        assert shown.splitlines()[-1].endswith(f"everything is in {folder}")
        assert ("runs/tiny holds another run, or a complete one; this is" in shown) == (folder != "runs/tiny")
        for name in ("report.html", "curves.png", "confusion.png", "metrics.jsonl", "config.yaml", "versions.json"):
            assert (tmp_path / folder / name).stat().st_size > 0
        assert list((tmp_path / folder / "attention").glob("*.png"))
        assert list((tmp_path / folder / "tensorboard").iterdir())


def test_any_mechanism_with_options_and_the_weights_of_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mechanism is an argument of the model, in a recipe or on the command line; the next run starts from it."""
    images, recipe = make_images(tmp_path / "images"), write_recipe(tmp_path / "tiny.yaml")
    given = yaml.safe_load(recipe.read_text())["model"]["args"]
    start: list[str] = []
    for text in ("performer(features=8,seed=3)", "nystromformer(landmarks=4)", "focused"):
        out = tmp_path / text.partition("(")[0]
        args = json.dumps({**given, "attention": text})
        arguments = ["train", "--config", str(recipe), "--data", str(images), "--model.args", args, *start]
        assert main([*arguments, "--out", str(out)]) == 0
        shown = capsys.readouterr().out
        assert ("the checkpoint has another attention mechanism than the model" in shown) == bool(start)
        config = yaml.safe_load((out / "config.yaml").read_text())
        assert config["model"]["args"]["attention"] == text
        assert main(["eval", "--checkpoint", str(out)]) == 0
        capsys.readouterr()
        weights = next(out.rglob("model.safetensors"))
        start = ["--model.checkpoint", str(weights)]


@pytest.mark.parametrize("preload", ["false", "true"])
def test_broken_images(tmp_path: Path, capsys: pytest.CaptureFixture[str], preload: str) -> None:
    images = make_images(tmp_path / "images")
    for name in ("train/red/3.png", "val/green/1.png"):
        (images / name).write_bytes((images / name).read_bytes()[:100])
    recipe = write_recipe(tmp_path / "tiny.yaml")
    arguments = ["--config", str(recipe), "--data", str(images), "--data.preload", preload]
    assert main(["train", *arguments, "--out", str(tmp_path / "stop")]) == 2
    err = capsys.readouterr().err
    assert "red/3.png: cannot be read" in err
    assert "--data.on_error skip" in err
    assert err.count("\n") == 1
    assert main(["train", *arguments, "--out", str(tmp_path / "skip"), "--data.on_error", "skip"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("red/3.png: cannot be read") == 1
    assert "skipped: 0 batches, 2 unreadable images" in shown
    confusion = yaml.safe_load((tmp_path / "skip/confusion.json").read_text())["counts"]
    assert sum(map(sum, confusion)) == 14


def test_odd_images_train(tmp_path: Path) -> None:
    from PIL import Image

    images = make_images(tmp_path / "images")
    odd = images / "train/red"
    Image.new("RGB", (1, 1), "red").save(odd / "a.png")
    Image.new("CMYK", (20, 20)).save(odd / "b.jpg")
    Image.new("I;16", (20, 20), 40000).save(odd / "c.png")
    Image.new("RGBA", (20, 20), (255, 0, 0, 10)).save(odd / "d.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (30, 10), "red").save(odd / "e.jpg", exif=exif)
    recipe = write_recipe(tmp_path / "tiny.yaml", batch={"size": 41}, schedule={"epochs": 1})
    assert main(["train", "--config", str(recipe), "--data", str(images), "--out", str(tmp_path / "run")]) == 0
