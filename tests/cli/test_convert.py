"""`sightline convert`: what it writes, what it prints, and that the weights stay the same."""

import json
import os
from pathlib import Path

import pytest
import timm
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from sightline.cli.main import main

from .checkpoints import SMALL, public, save, small

CAPTURE = pytest.CaptureFixture[str]


def logits(model: nn.Module, size: int = 64, channels: int = 3) -> Tensor:
    torch.manual_seed(1)
    with torch.no_grad():
        return model.eval()(torch.randn(2, channels, size, size))


def metadata(out: Path) -> tuple[str, dict]:
    with safe_open(out, "pt") as file:
        found = file.metadata()
    assert found["format"] == "pt"
    assert found["sightline"]
    return found["model"], json.loads(found["model_args"])


def reload(out: Path) -> nn.Module:
    name, arguments = metadata(out)
    return timm.create_model(name, checkpoint_path=str(out), **arguments)


@pytest.mark.parametrize("family", ["deit", "pvt", "swin"])
@pytest.mark.parametrize("attention", ["default", "softmax"])
def test_public_weights_give_the_same_logits(family: str, attention: str, tmp_path: Path, capsys: CAPTURE) -> None:
    model = small(family, **({} if attention == "default" else {"attention": attention}))
    # Softmax shows its heads only where it has a position bias.
    told = attention == "default" or family == "swin"
    heads = [] if told else ["--model-args", f"num_heads={json.dumps(SMALL[family][1]['num_heads'])}"]
    source = save({"model": {f"module.{k}": v for k, v in public(model).items()}}, tmp_path / "public.pth")
    out = tmp_path / "out.safetensors"
    assert main(["convert", source, str(out), *heads]) == 0
    torch.testing.assert_close(logits(reload(out)), logits(model), rtol=0, atol=0)
    shown, err = capsys.readouterr()
    assert err == ""
    assert f"family       {family}" in shown
    assert shown.splitlines()[-1].startswith(f"wrote        {out} (")
    assert f"{sum(p.numel() for p in model.parameters()):,} parameters" in shown
    assert "missing      nothing\nunexpected   nothing\n" in shown
    assert sorted(os.listdir(tmp_path)) == ["out.safetensors", "public.pth"]
    assert out.stat().st_mode & 0o777 == (tmp_path / "public.pth").stat().st_mode & 0o777


def test_guessed_heads_are_named(tmp_path: Path, capsys: CAPTURE) -> None:
    source = save(public(small("pvt", attention="softmax")), tmp_path / "public.pth")
    out = tmp_path / "out.safetensors"
    assert main(["convert", source, str(out)]) == 0
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("heads", "1, 1, 1, 1", "num_heads"))
    assert main(["convert", source, str(out), "--force", "--model-args", "num_heads=1,2,3,4"]) == 0
    assert main(["convert", str(out), str(tmp_path / "again.safetensors")]) == 0
    assert "num_heads=\n" not in capsys.readouterr().out
    assert metadata(tmp_path / "again.safetensors")[1]["num_heads"] == [1, 2, 3, 4]


def test_buffers_that_follow_from_the_architecture_are_named(tmp_path: Path, capsys: CAPTURE) -> None:
    source = save(public(small("swin")), tmp_path / "public.pth")
    assert main(["convert", source, str(tmp_path / "out.safetensors")]) == 0
    names = ", ".join(f"layers.3.blocks.{i}.attn.relative_position_index" for i in (0, 1))
    assert f"dropped      {names}\n" in capsys.readouterr().out


def test_native_file_is_read_again_and_keeps_its_name(tmp_path: Path, capsys: CAPTURE) -> None:
    model = small("soft", attention="soft_norm,soft_norm,soft_norm,softmax")
    source = save(model.state_dict(), tmp_path / "native.pth")
    first, second = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    arguments = ["--model", "soft_norm_tiny", "--img-size", "64", "--model-args", "depths=1,1,1,1"]
    widths = ["--model-args", '{"embed_dims": [8, 16, 24, 32], "num_heads": [1, 2, 3, 4]}']
    assert main(["convert", source, str(first), *arguments, *widths]) == 0
    assert main(["convert", str(first), str(second)]) == 0
    assert metadata(second) == metadata(first)
    assert metadata(second)[0] == "soft_norm_tiny"
    torch.testing.assert_close(logits(reload(second)), logits(model), rtol=0, atol=0)
    assert "renamed      no keys" in capsys.readouterr().out


def test_models_of_the_same_shapes_are_named(tmp_path: Path, capsys: CAPTURE) -> None:
    source = save(small("soft").state_dict(), tmp_path / "native.pth")
    assert main(["convert", source, str(tmp_path / "out.safetensors")]) == 0
    note = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("note"))
    assert "cannot be told from it" in note
    name = metadata(tmp_path / "out.safetensors")[0]
    assert f"--model {name.replace('soft', 'soft_norm')} and give --model-args '{{" in note


def test_position_tables_follow_the_size(tmp_path: Path, capsys: CAPTURE) -> None:
    model = small("pvt")
    source, out = save(public(model), tmp_path / "public.pth"), tmp_path / "out.safetensors"
    assert main(["convert", source, str(out), "--img-size", "96x128"]) == 0
    shown = capsys.readouterr().out
    assert "resampled    stages.0.pos_embed.weight from 1x16x16x8 to 1x24x32x8" in shown
    model.set_input_size((96, 128))
    found = reload(out)
    assert found.img_size == (96, 128)
    torch.testing.assert_close(logits(found, 96), logits(model, 96))


def test_bias_tables_follow_the_window(tmp_path: Path, capsys: CAPTURE) -> None:
    model = small("swin")
    source, out = save(public(model), tmp_path / "public.pth"), tmp_path / "out.safetensors"
    assert main(["convert", source, str(out), "--model-args", "window_size=2"]) == 0
    assert "position_bias.table from 49x4 to 9x4" in capsys.readouterr().out
    model.set_input_size(window_size=2)
    torch.testing.assert_close(logits(reload(out)), logits(model))


def test_another_number_of_classes_starts_a_new_classifier(tmp_path: Path, capsys: CAPTURE) -> None:
    source = save(public(small("deit")), tmp_path / "public.pth")
    outs = [tmp_path / f"{i}.safetensors" for i in range(2)]
    for out in outs:
        assert main(["convert", source, str(out), "--num-classes", "7"]) == 0
    shown, err = capsys.readouterr()
    assert "dropped      head.weight, head.bias\nmissing      head.weight, head.bias\n" in shown
    assert "new and random" in shown
    assert err == ""
    first, second = (load_file(out) for out in outs)
    assert all(torch.equal(first[key], second[key]) for key in first)  # the same classifier every time
    assert reload(outs[0]).num_classes == 7


def test_channels_are_taken_from_the_weights(tmp_path: Path) -> None:
    model = small("deit", in_chans=1)
    source, out = save(public(model), tmp_path / "public.pth"), tmp_path / "out.safetensors"
    assert main(["convert", source, str(out)]) == 0
    torch.testing.assert_close(logits(reload(out), channels=1), logits(model, channels=1), rtol=0, atol=0)


def test_averaged_weights_come_first(tmp_path: Path) -> None:
    model, other = small("deit"), small("deit")
    averaged = {"n_averaged": torch.tensor(3), **{f"module.{k}": v for k, v in public(model).items()}}
    source = save({"model": public(other), "model_ema": averaged}, tmp_path / "public.pth")
    out = tmp_path / "out.safetensors"
    assert main(["convert", source, str(out)]) == 0
    torch.testing.assert_close(logits(reload(out)), logits(model), rtol=0, atol=0)


def test_existing_file_is_kept_unless_forced(tmp_path: Path, capsys: CAPTURE) -> None:
    source, out = save(public(small("deit")), tmp_path / "public.pth"), tmp_path / "out.safetensors"
    out.write_text("precious")
    assert main(["convert", source, str(out)]) == 2
    assert "pass --force" in capsys.readouterr().err
    assert out.read_text() == "precious"
    assert main(["convert", source, str(out), "--force"]) == 0
    assert metadata(out)[0] == "inline_deit_tiny"


def test_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: CAPTURE) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    source = save(public(small("deit")), tmp_path / "public.pth")
    assert main(["convert", source, str(tmp_path / "out.safetensors")]) == 2
    assert "No space left" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["public.pth"]


@pytest.mark.parametrize(
    ("out", "named"),
    [
        ("none/out.safetensors", "no folder"),
        ("out.pth", "out.safetensors"),
        ("d.safetensors", "a folder"),
    ],
)
def test_bad_targets(out: str, named: str, tmp_path: Path, capsys: CAPTURE) -> None:
    (tmp_path / "d.safetensors").mkdir()
    assert main(["convert", "source.pth", str(tmp_path / out)]) == 2
    err = capsys.readouterr().err
    assert str(tmp_path / out) in err
    assert named in err


@pytest.mark.parametrize(
    ("argument", "named"),
    [
        ("depths", ["--model-args", "'depths'", "key=value"]),
        ("{1}", ["--model-args", "'{1}'"]),
        ("window=3", ["'window'", "img_size"]),
        ("depth=3", ["'depth'", "'depths'"]),
        ("depths=foo", ["depths=", "foo"]),
        ("num_heads=5", ["num_heads=5"]),
        ("num_heads=null", ["num_heads="]),
    ],
)
def test_bad_model_args(argument: str, named: list[str], tmp_path: Path, capsys: CAPTURE) -> None:
    source = save(public(small("deit")), tmp_path / "public.pth")
    status = main(["convert", source, str(tmp_path / "out.safetensors"), "--model-args", argument])
    err = capsys.readouterr().err
    assert (status, err.count("\n")) == (2, 1)
    assert all(text in err for text in named)
