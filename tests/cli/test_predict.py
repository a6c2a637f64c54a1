"""`sightline predict`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sightline.cli.main import main
from sightline.tasks.card import ModelCard

from .checkpoints import public, save, small
from .classifiers import CLASSES, by_hand, classifier, pictures, run_folder

CAPTURE = pytest.CaptureFixture[str]


def predict(capsys: CAPTURE, *arguments: str) -> list[dict[str, Any]]:
    assert main(["predict", *arguments, "--device", "cpu", "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def weights(tmp_path: Path) -> str:
    classifier(tmp_path / "model.safetensors")
    return str(tmp_path / "model.safetensors")


def test_against_a_loop_by_hand(tmp_path: Path, capsys: CAPTURE) -> None:
    data = pictures(tmp_path / "pictures")
    model = classifier(tmp_path / "model.safetensors")
    found = predict(capsys, str(data), "--checkpoint", str(tmp_path / "model.safetensors"))
    expected = by_hand(model, data, ModelCard("", input_size=(3, 32, 32)))
    assert len(found) == len(expected) == 12
    for fact, (_, probabilities) in zip(found, expected, strict=True):
        order = sorted(range(3), key=lambda i: -probabilities[i])
        assert [row["class"] for row in fact["predictions"]] == [CLASSES[i] for i in order]
        assert [row["probability"] for row in fact["predictions"]] == pytest.approx(
            [probabilities[i] for i in order], abs=1e-4
        )


def test_files_folders_and_patterns(tmp_path: Path, capsys: CAPTURE, weights: str) -> None:
    data = pictures(tmp_path / "pictures", count=2)
    (data / "notes.txt").write_text("no picture")
    one = str(data / "red" / "00.png")
    assert [fact["file"] for fact in predict(capsys, one, "--checkpoint", weights)] == [one]
    assert len(predict(capsys, str(data), "--checkpoint", weights)) == 6
    assert len(predict(capsys, str(data / "*" / "00.png"), "--checkpoint", weights)) == 3
    assert len(predict(capsys, str(data / "**" / "*.png"), one, "--checkpoint", weights)) == 6  # each once
    odd = data / "photo[1].png"
    odd.write_bytes(Path(one).read_bytes())
    assert predict(capsys, str(odd), "--checkpoint", weights)[0]["file"] == str(odd)


def test_table_and_top(tmp_path: Path, capsys: CAPTURE) -> None:
    data = pictures(tmp_path / "data" / "val")
    run_folder(tmp_path / "run", tmp_path / "data")
    picture = str(data / "blue" / "01.png")
    assert main(["predict", picture, "--checkpoint", str(tmp_path / "run"), "--top", "2", "--device", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == picture
    assert lines[1].split() == ["rank", "index", "probability", "class"]
    assert [line.split()[0] for line in lines[2:4]] == ["1", "2"]
    assert lines[2].split()[-1] in CLASSES


ODD = {
    "one pixel": Image.new("RGB", (1, 1), "red"),
    "cmyk": Image.new("CMYK", (40, 40), (0, 255, 255, 0)),
    "16 bits": Image.fromarray(np.full((40, 40), 60000, np.uint16)),
    "transparent": Image.new("RGBA", (40, 40), (255, 0, 0, 0)),
    "palette": Image.new("P", (40, 40)),
    "a line": Image.new("RGB", (400, 1), "blue"),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_images(tmp_path: Path, capsys: CAPTURE, weights: str, name: str) -> None:
    path = tmp_path / f"odd.{'jpg' if name == 'cmyk' else 'png'}"
    ODD[name].save(path)
    (fact,) = predict(capsys, str(path), "--checkpoint", weights)
    assert sum(row["probability"] for row in fact["predictions"]) == pytest.approx(1, abs=1e-4)


def test_a_turned_image_is_the_upright_one(tmp_path: Path, capsys: CAPTURE, weights: str) -> None:
    upright = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6
    upright.save(tmp_path / "a.png")
    upright.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "b.png", exif=exif)
    upright.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "c.png")
    a, b, c = predict(capsys, *(str(tmp_path / f"{n}.png") for n in "abc"), "--checkpoint", weights)
    assert a["predictions"] == b["predictions"]
    assert a["predictions"] != c["predictions"]


def test_grey_models(tmp_path: Path, capsys: CAPTURE) -> None:
    from sightline.engine.checkpoint import write_weights

    model = small("deit", in_chans=1, num_classes=3, img_size=32)
    args = {"embed_dims": 16, "num_heads": 2, "depths": 2, "in_chans": 1, "num_classes": 3, "img_size": 32}
    card = ModelCard("inline_deit_tiny", args, CLASSES, (1, 32, 32), (0.5,), (0.5,))
    write_weights(tmp_path / "grey.safetensors", model, card)
    Image.new("RGB", (40, 40), "red").save(tmp_path / "a.png")
    arguments = (str(tmp_path / "a.png"), "--checkpoint", str(tmp_path / "grey.safetensors"))
    assert len(predict(capsys, *arguments)[0]["predictions"]) == 3
    drawn = predict(capsys, *arguments, "--attention", str(tmp_path / "a-map.png"))
    assert Path(drawn[0]["attention"]).is_file()


def test_public_checkpoints_speak_in_words(tmp_path: Path, capsys: CAPTURE) -> None:
    source = save({"model": public(small("deit", num_classes=1000, img_size=224))}, tmp_path / "public.pth")
    data = pictures(tmp_path / "pictures", count=1)
    found = predict(capsys, str(data), "--checkpoint", source, "--img-size", "64", "--top", "1")
    assert len(found) == 3
    assert not found[0]["predictions"][0]["class"].startswith("n0")
    nameless = save(public(small("deit", num_classes=7)), tmp_path / "seven.pth")
    (row,) = predict(capsys, str(data / "red"), "--checkpoint", nameless, "--top", "1")[0]["predictions"]
    assert row["class"] == str(row["index"])


@pytest.mark.slow
@pytest.mark.parametrize("family", ["deit", "pvt", "swin", "cswin", "soft"])
def test_attention_pictures(tmp_path: Path, capsys: CAPTURE, family: str) -> None:
    data = pictures(tmp_path / "pictures", count=1)
    classifier(tmp_path / "model.safetensors", family=family)
    weights = str(tmp_path / "model.safetensors")
    one = str(data / "red" / "00.png")
    (fact,) = predict(capsys, one, "--checkpoint", weights, "--attention", str(tmp_path / "one.png"))
    assert fact["attention"] == str(tmp_path / "one.png")
    with Image.open(tmp_path / "one.png") as picture:
        assert picture.width > 2 * picture.height  # the image and several maps in a row


def test_attention_pictures_in_a_folder(tmp_path: Path, capsys: CAPTURE, weights: str) -> None:
    data = pictures(tmp_path / "pictures", count=1)
    assert main(["predict", str(data), "--checkpoint", weights, "--attention", str(tmp_path / "maps")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"wrote {tmp_path / 'maps'}"
    assert len(list((tmp_path / "maps").glob("*.png"))) == 3  # all are called 00, and yet none is lost


def test_the_query_changes_the_picture(tmp_path: Path, capsys: CAPTURE, weights: str) -> None:
    data = pictures(tmp_path / "pictures", count=1)
    drawn = []
    for query in ("0.1,0.1", "0.9,0.9", "class"):
        target = tmp_path / f"{query}.png"
        predict(
            capsys, str(data / "red"), "--checkpoint", weights, "--attention", str(target), "--query", query,
            "--img-size", "64",
        )  # fmt: skip
        drawn.append(target.read_bytes())
    assert len(set(drawn)) == 3


def test_broken_images(tmp_path: Path, capsys: CAPTURE, weights: str) -> None:
    data = pictures(tmp_path / "pictures", count=1)
    (data / "blue" / "bad.jpg").write_bytes(b"words")
    assert main(["predict", str(data), "--checkpoint", weights]) == 2
    captured = capsys.readouterr()
    assert "bad.jpg" in captured.err
    assert captured.err.count("\n") == 1
    found = predict(capsys, str(data), "--checkpoint", weights, "--on-error", "skip")
    assert sorted("error" in fact for fact in found) == [False, False, False, True]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--checkpoint", "MODEL"], "IMAGE"),
        (["none.png", "--checkpoint", "MODEL"], "none.png"),
        (["", "--checkpoint", "MODEL"], "empty"),
        (["IMAGE", "--checkpoint", "MODEL", "--on-error", "skp"], "'skp'"),
        (["IMAGE", "--checkpoint", "MODEL", "--attention", "/proc/x"], "/proc/x"),
        (["IMAGE", "--checkpoint", "MODEL", "--attention", "/proc/x.png"], "/proc"),
        (["IMAGE", "--checkpoint", "MODEL", "--attention", "map.jpg"], "--attention: map.jpg is not a folder"),
        (["EMPTY", "--checkpoint", "MODEL"], "no images"),
        (["EMPTY/*.png", "--checkpoint", "MODEL"], "*.png"),
        (["IMAGE", "--checkpoint", "MODEL", "--top", "0"], "--top"),
        (["IMAGE", "--checkpoint", "MODEL", "--top", str(10**60)], "--top"),
        (["IMAGE", "--checkpoint", "MODEL", "--query", "99,2", "--attention", "EMPTY"], "--query"),
        (["IMAGE", "IMAGE2", "--checkpoint", "MODEL", "--attention", "a.png"], "--attention: a.png"),
        (["IMAGE", "--checkpoint", "MODEL", "--attention", "IMAGE2/a.png"], "--attention: "),
        (["IMAGE", "--checkpoint", "HEADLESS"], "no classifier"),
        (["IMAGE", "--checkpoint", "MODEL", "--img-size", "0"], "--img-size"),
        (["IMAGE", "--checkpoint", "PVT", "--attention", "EMPTY", "--query", "class"], "--query: "),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, capsys: CAPTURE, arguments: list[str], message: str) -> None:
    data = pictures(tmp_path / "pictures", count=2)
    (tmp_path / "empty").mkdir()
    classifier(tmp_path / "model.safetensors")
    classifier(tmp_path / "pvt.safetensors", family="pvt")
    places = {
        "MODEL": str(tmp_path / "model.safetensors"),
        "PVT": str(tmp_path / "pvt.safetensors"),
        "HEADLESS": save(public(small("deit", num_classes=0)), tmp_path / "headless.pth"),
        "IMAGE2": str(data / "red" / "01.png"),
        "IMAGE": str(data / "red" / "00.png"),
        "EMPTY": str(tmp_path / "empty"),
    }
    given = []
    for word in arguments:
        key, slash, rest = word.partition("/")
        given.append(places.get(key, key) + slash + rest)
    assert main(["predict", *given]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
