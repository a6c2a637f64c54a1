"""`sightline list`."""

import json
import sys

import pytest

from sightline.cli.main import main
from sightline.cli.output import Column, _fitting, plain
from sightline.layers.spec import MECHANISMS
from sightline.models.weights.published import PUBLISHED
from sightline.models.zoo import VARIANTS, create


def test_every_model_in_a_pipe_uncut(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows] == list(VARIANTS)
    for name in ("size", "params M", "FLOPs G, published", "top-1", "dims / heads / depths", "attention", "family"):
        assert name in header
    base = next(row for row in rows if row.startswith("inline_swin_base "))
    for cell in ("88.35", "15.4", "84.1", "128-256-512-1024 / 4-8-16-32 / 2-2-18-2", "swin"):
        assert cell in base
    assert "inline,inline,inline*2+softmax*16,softmax" in base
    assert {row.index(".") for row in rows} == {base.index(".")}  # numbers end in one column


def test_pattern(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "*swin*"]) == 0
    rows = capsys.readouterr().out.splitlines()[1:]
    assert rows
    assert all("swin" in row.split()[0] for row in rows)


@pytest.mark.parametrize(
    ("pattern", "near"), [("*swn*", "'*swin*'"), ("inline_pvt_larg", "'inline_pvt_large'"), ("", "omit the pattern")]
)
def test_no_match_names_the_nearest(pattern: str, near: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", pattern]) == 2
    assert f"no name matches {pattern!r}; " in (err := capsys.readouterr().err)
    assert near in err


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "soft_tiny", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {
            "name": "soft_tiny",
            "family": "soft",
            "img_size": 224,
            "params_m": 13.07,
            "flops_g": 1.9,
            "top1": 79.3,
            "embed_dims": [64, 128, 320, 512],
            "num_heads": [2, 4, 10, 16],
            "depths": [1, 2, 3, 2],
            "attention": "soft,soft,soft,softmax",
            "weights": PUBLISHED["soft_tiny"].url,
            "licence": PUBLISHED["soft_tiny"].licence,
        }
    ]


def test_weights(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "inline_swin_base*"]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    column = header.index("weights")
    assert [row[column:].split()[0] for row in rows] == ["yes", "-"]
    assert main(["list", "inline_vit_tiny"]) == 0
    assert "in the package" in capsys.readouterr().out


def test_mechanisms(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--attention"]) == 0
    header, *rest = capsys.readouterr().out.splitlines()
    rows, notes = rest[: len(MECHANISMS)], rest[len(MECHANISMS) :]
    assert [row.split()[0] for row in rows] == list(MECHANISMS)
    assert [title in header for title in ("options", "cost", "extra params", "paper")] == [True] * 4
    assert "DeiT-Tiny" in " ".join(notes)
    enhanced = next(row for row in rows if row.startswith("enhanced "))
    assert all(cell in enhanced for cell in ("scales=1, kernel=5", "69,696", "EfficientViT"))
    inline = next(row for row in rows if row.startswith("inline "))
    assert "N d^2" in inline
    assert "whole map" in inline
    assert "phi=identity, residual=true" in inline
    assert "Bridging the Divide" in inline


def test_mechanisms_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--attention", "soft", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["windowed"] is False
    assert row["options"]["iterations"] == 20
    assert main(["list", "--attention", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == list(MECHANISMS)
    assert all(row["cost"] and row["paper"] and row["weights"] and row["use"] for row in rows)


def _parameters(mechanism: str) -> int:
    """Of the first block of DeiT-Tiny."""
    model = create("inline_deit_tiny", device="meta", attention=mechanism)
    return sum(p.numel() for p in model.blocks[0].parameters())  # type: ignore[index,union-attr]


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_extra_parameters_are_those_of_a_block(mechanism: str) -> None:
    assert MECHANISMS[mechanism].extra_parameters() == _parameters(mechanism) - _parameters("softmax")


def test_narrow_terminal_shows_whole_names(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    assert main(["list"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in VARIANTS)
    assert max(map(len, shown.splitlines()[:-1])) <= 80
    assert "also shows: dims / heads / depths, attention." in shown


def test_wide_columns_go_first_to_last() -> None:
    columns = (Column("a"), Column("b", wide=True), Column("c", right=True), Column("d", wide=True))
    rows = [["x", "y" * 10, "1", "z" * 10], ["x", "y", "22", "z"]]
    assert [len(_fitting(columns, rows, width)) for width in (80, 20, 10)] == [4, 3, 2]
    assert plain(columns, rows)[1] == "x  yyyyyyyyyy   1  zzzzzzzzzz"
