"""`sightline.load` and `sightline.convert` as functions."""

import doctest
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import safetensors
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

import sightline
from sightline import hub
from sightline.models.sequence import create_sequence_model
from sightline.models.weights import checkpoint
from sightline.models.weights.fit import MismatchError
from sightline.tasks.sequences.card import SequenceCard
from sightline.util.errors import FileError, InputError, WeightsWarning
from tests.cli.checkpoints import SMALL, public, save, small
from tests.cli.classifiers import CLASSES, classifier, run_folder


@pytest.mark.parametrize("value", [None, 5, b"x", ["a"]])
def test_paths_and_names_of_another_kind(value: Any) -> None:
    calls: dict[str, Callable[[Any], object]]
    calls = {"model": sightline.create_model, "source": sightline.convert, "pattern": sightline.list_models}
    if value is not None:  # a default of these
        calls |= {"checkpoint": sightline.load, "recipe": sightline.train}
    for argument, call in calls.items():
        with pytest.raises(InputError, match=rf"^{argument}: .*{re.escape(repr(value))}"):
            call(value)


def test_run_folder(tmp_path: Path) -> None:
    model = run_folder(tmp_path / "run", tmp_path)
    loaded = sightline.load(tmp_path / "run")
    assert (loaded.task, loaded.classes) == ("classification", CLASSES)
    assert loaded.path == tmp_path / "run" / "checkpoints" / "best" / "model.safetensors"
    assert not loaded.model.training
    assert loaded.transform is not None
    x = loaded.transform(Image.new("RGB", (50, 40), "red")).unsqueeze(0)
    assert x.shape == (1, 3, 32, 32)
    torch.testing.assert_close(loaded.model(x), model(x), rtol=0, atol=0)


def test_create_model_takes_the_arguments_of_a_run(tmp_path: Path) -> None:
    model = run_folder(tmp_path / "run", tmp_path)
    best, x = sightline.load(tmp_path / "run"), torch.randn(1, 3, 32, 32)
    for path in (tmp_path / "run", best.path):
        again = sightline.create_model(best.card.name, checkpoint_path=path).eval()
        torch.testing.assert_close(again(x), model(x), rtol=0, atol=0)
    with pytest.warns(WeightsWarning, match="classifier"):
        other = sightline.create_model(best.card.name, checkpoint_path=best.path, num_classes=2, img_size=64)
    assert other(x).shape == (1, 2)
    features = sightline.create_model(best.card.name, checkpoint_path=best.path, features_only=True)
    assert len(features(x)) == len(features.feature_info)  # type: ignore[arg-type]
    with pytest.raises(MismatchError, match=r"sightline\.load\(path\)"):
        timm.create_model(best.card.name, checkpoint_path=str(best.path))  # timm does not read cards
    with pytest.raises(FileError, match="nowhere"):
        sightline.create_model(best.card.name, checkpoint_path=tmp_path / "nowhere")


def test_a_card_with_arguments_that_no_model_has(tmp_path: Path) -> None:
    save_file(small("deit").state_dict(), path := tmp_path / "a.safetensors", {"model": SMALL["deit"][0]})
    for args in ('{"act_layer": 1}', "[", "3", '{"pretrained_cfg": {}}'):
        metadata = {"model": SMALL["deit"][0], "model_args": args}
        save_file(small("deit").state_dict(), path, metadata)
        with pytest.raises(FileError, match="card"):
            sightline.create_model(SMALL["deit"][0], checkpoint_path=path)


@pytest.mark.parametrize("door", [sightline.load, sightline.convert, sightline.save_for_hf])
def test_examples(door: Callable[..., object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_folder(tmp_path / "runs" / "quick", tmp_path)
    save(public(small("deit")), tmp_path / "public.pth")
    (example,) = doctest.DocTestFinder(recurse=False).find(door)
    assert example.examples
    assert doctest.DocTestRunner().run(example).failed == 0


def test_published_checkpoint(tmp_path: Path) -> None:
    model = small("swin")
    loaded = sightline.load(save({"model": public(model)}, tmp_path / "public.pth"))
    assert (loaded.task, loaded.classes, loaded.card.name) == ("classification", (), SMALL["swin"][0])
    x = torch.randn(1, 3, 64, 64)
    torch.testing.assert_close(loaded.model(x), model(x), rtol=0, atol=0)


def test_sequences(tmp_path: Path) -> None:
    model = create_sequence_model("lra_image", max_length=16).eval()
    card = SequenceCard("lra_image", {"max_length": 16}, tuple("abcdefghij"), (16,), "image")
    save_file(model.state_dict(), tmp_path / "model.safetensors", card.to_metadata())
    loaded = sightline.load(tmp_path)
    assert (loaded.task, loaded.transform, loaded.classes) == ("sequences", None, card.classes)
    ids = torch.ones(1, 16, dtype=torch.long)
    torch.testing.assert_close(loaded.model(ids), model(ids), rtol=0, atol=0)


def test_the_header_is_read_once_and_the_model_built_once(tmp_path: Path) -> None:
    save_file(small("deit").state_dict(), tmp_path / "plain.safetensors")
    built, opened = [], []
    create, open_file = checkpoint.create, safetensors.safe_open

    def counted(name: str, **kwargs: object) -> torch.nn.Module:
        built.append(kwargs.get("device"))
        return create(name, **kwargs)

    def counted_open(*args: object) -> object:
        opened.append(args[0])
        return open_file(*args)

    targets = ("sightline.models.weights.checkpoint.create", "sightline.models.weights.identify.create")
    with (
        mock.patch(targets[0], counted),
        mock.patch(targets[1], counted),
        mock.patch("safetensors.safe_open", counted_open),
    ):
        sightline.load(tmp_path / "plain.safetensors")
    assert built == ["meta", None]
    assert len(opened) == 1


def test_model_and_arguments_of_the_user(tmp_path: Path) -> None:
    model = small("deit", attention="hydra")
    path = save(model.state_dict(), tmp_path / "native.pth")
    args = {"attention": "hydra", **SMALL["deit"][1], "img_size": 64}
    loaded = sightline.load(path, model="inline_deit_tiny", model_args=args)
    x = torch.randn(1, 3, 64, 64)
    torch.testing.assert_close(loaded.model(x), model(x), rtol=0, atol=0)
    with pytest.raises(InputError, match=r"'inline_deit_tny'.*'inline_deit_tiny'"):
        sightline.load(path, model="inline_deit_tny")
    with pytest.raises(InputError, match=r"'depth'.*'depths'"):
        sightline.load(path, model_args={"depth": 3})


def test_errors_are_one_line(tmp_path: Path) -> None:
    classifier(tmp_path / "whole.safetensors")
    headless = save(public(small("deit", num_classes=0)), tmp_path / "headless.pth")
    cases: list[tuple[str | Path, type[ValueError], str]] = [
        ("", InputError, "path"),
        (tmp_path / "none.pth", FileError, "none.pth"),
        (tmp_path, FileError, str(tmp_path)),
        (headless, FileError, "classifier"),
    ]
    for path, kind, text in cases:
        with pytest.raises(kind) as caught:
            sightline.load(path)
        assert text in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="'gpu'"):
        sightline.load(tmp_path / "whole.safetensors", device="gpu")


def test_convert(tmp_path: Path) -> None:
    model = small("deit")
    source = save(public(model), tmp_path / "public.pth")
    done = sightline.convert(source)
    assert done.target == tmp_path / "public.safetensors"
    assert (done.missing, done.unexpected, done.dropped) == ((), (), ())
    loaded = sightline.load(done.target)
    x = torch.randn(1, 3, 64, 64)
    torch.testing.assert_close(loaded.model(x), model(x), rtol=0, atol=0)
    with pytest.raises(InputError, match=r"public\.safetensors"):
        sightline.convert(source)
    done = hub.convert(source, model_args={"num_classes": 3}, force=True)
    assert done.missing == done.dropped == ("head.weight", "head.bias")


def test_convert_names_counters_that_the_file_does_not_have(tmp_path: Path) -> None:
    state = {key: value for key, value in small("soft").state_dict().items() if "num_batches_tracked" not in key}
    done = sightline.convert(save(state, tmp_path / "soft.pth"))
    assert done.missing
    assert all(key.endswith("num_batches_tracked") for key in done.missing)
