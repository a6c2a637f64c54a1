"""Images, names and weights that no command should trust: status 0 or 2, one line, nothing raw on the terminal."""

import json
import os
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from sightline.cli.main import main

from .checkpoints import public, save, small
from .classifiers import CLASSES, classifier, pictures

CAPTURE = pytest.CaptureFixture[str]
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 20 20\n%%EndComments\nshowpage\n%%EOF\n"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("untrusted")
    classifier(folder / "model.safetensors")
    pictures(folder / "data/val", count=2)
    return folder


def write(path: Path, kind: str) -> None:
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "eps":
        path.write_bytes(EPS)
    else:
        Image.new("RGB", (30_000, 1)).save(path)


@pytest.mark.parametrize("kind", ["pipe", "loop", "eps", "strip"])
def test_images_that_cannot_be_used(files: Path, kind: str, capsys: CAPTURE) -> None:
    path = files / "data/val/red/bad.png"
    write(path, kind)
    try:
        for command in (
            ["predict", str(path)], ["predict", str(path.parent), "--attention", str(files / "maps")],
            ["eval", "--data", str(files / "data"), "--workers", "0"],
        ):  # fmt: skip
            arguments = [*command, "--checkpoint", str(files / "model.safetensors")]
            assert main(arguments) == (0 if kind == "strip" else 2)
            err = capsys.readouterr().err
            assert err == "" or (str(path.name) in err and err.count("\n") == 1)
            assert main([*arguments, "--on-error", "skip"]) == 0
            assert kind == "strip" or path.name in capsys.readouterr().out
    finally:
        path.unlink()


def renamed(files: Path, out: Path, classes: list[str]) -> str:
    """The weights with other names of classes."""
    source = files / "model.safetensors"
    with safe_open(source, "pt") as file:
        metadata = file.metadata() | {"classes": json.dumps(classes)}
    save_file(load_file(source), out, metadata)
    return str(out)


@pytest.mark.parametrize("name", ["\x1b[31mred\x1b[0m", "x" * 10**6, "a\nb", "\u202egnp", "$\\frac{", "[/red]"])
def test_names_of_classes(files: Path, tmp_path: Path, name: str, capsys: CAPTURE) -> None:
    weights = renamed(files, tmp_path / "model.safetensors", [name, *CLASSES[1:]])
    image = str(files / "data/val/red/00.png")
    for command in (
        ["predict", image], ["predict", image, "--json"], ["predict", image, "--attention", str(tmp_path / "map.png")],
        ["eval", "--data", str(files / "data"), "--workers", "0"],
        ["eval", "--data", str(files / "data"), "--workers", "0", "--labels", "order"],
    ):  # fmt: skip
        assert main([*command, "--checkpoint", weights]) in (0, 2)
        for text in capsys.readouterr():
            assert not {"\x1b", "\u202e"} & set(text)
            assert "--json" in command or max(map(len, text.split("\n"))) <= 2100


def test_keys_of_weights(tmp_path: Path, capsys: CAPTURE) -> None:
    state = public(small("deit"))
    many = {f"k{i}": torch.zeros(1) for i in range(3000)}
    for number, extra in enumerate(({"\x1b[31m": torch.zeros(1)}, {"x" * 10**6: torch.zeros(1)}, many)):
        source = save({**state, **extra}, tmp_path / f"{number}.pth")
        assert main(["convert", source, str(tmp_path / "out.safetensors")]) == 2
        out, err = capsys.readouterr()
        assert "\x1b" not in out + err
        assert len(out + err) < 100_000
        assert err.count("\n") == 1


@pytest.mark.parametrize("command", ["predict", "eval"])
def test_json_has_no_nan(files: Path, tmp_path: Path, command: str, capsys: CAPTURE) -> None:
    source, out = files / "model.safetensors", tmp_path / "nan.safetensors"
    with safe_open(source, "pt") as file:
        save_file({key: torch.full_like(value, torch.nan) for key, value in load_file(source).items()}, out,
                  file.metadata())  # fmt: skip
    given = {"predict": [str(files / "data/val/red/00.png")], "eval": ["--data", str(files / "data"), "--workers", "0"]}
    assert main([command, *given[command], "--checkpoint", str(out), "--json"]) == 0
    json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
