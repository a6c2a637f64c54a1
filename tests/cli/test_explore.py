"""`sightline explore`."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import sightline
from sightline.cli.main import main

CAPTURE = pytest.CaptureFixture[str]
ARGS = ("--model-args", "embed_dims=16", "--model-args", "num_heads=2", "--model-args", "depths=1")
TINY = (*ARGS, "--model-args", "num_classes=4", "--img-size", "64")


def complaint(capsys: CAPTURE, *arguments: str) -> str:
    assert main(["explore", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def test_page(tmp_path: Path, capsys: CAPTURE) -> None:
    out = tmp_path / "page.html"
    assert main(["explore", *TINY, "--attention", "inline", "--out", str(out)]) == 0
    assert str(out) in capsys.readouterr().out
    assert "random weights" in out.read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--attention", "inlin"), ("inlin", "inline")),
        (("nothing.jpg",), ("nothing.jpg",)),
        (("--img-size", "2000"), ("--img-size", "2000", "1024")),
        (("--img-size", "416", "--out", "page.html"), ("--img-size", "676", "625")),
        (("--out", "photo.jpg"), ("--out", "photo.jpg", ".html")),
        (("--out", "no/such/folder/page.html"), ("--out", "no/such/folder/page.html")),
        (
            ("--attention", "inline", "--attention", "linear", "--attention", "soft", "--attention", "softmax"),
            ("4", "3"),
        ),
        (("--port", "70000"), ("--port", "70000")),
        (("--host", "no.such.host.invalid"), ("--host: no.such.host.invalid",)),
        (("--checkpoint", "nothing.pth"), ("nothing.pth",)),
        (("--device", "abacus"), ("--device", "abacus")),
    ],
)
def test_bad_input(capsys: CAPTURE, arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    given = TINY if "--img-size" not in arguments else ARGS
    error = complaint(capsys, *given, "--no-browser", *arguments)
    assert all(word in error for word in words)


def test_port_in_use(capsys: CAPTURE) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        error = complaint(capsys, *TINY, "--no-browser", "--port", port)
    assert "--port" in error
    assert port in error


def test_extra_not_installed(capsys: CAPTURE, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "sightline.explorer.server", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "pip install sightline[explore]" in complaint(capsys, *TINY, "--no-browser")


@pytest.mark.slow
def test_an_interrupt_ends_it_quietly() -> None:
    command = [sys.executable, "-m", "sightline", "explore", *TINY, "--attention", "inline", "--no-browser"]
    environment = {**os.environ, "PYTHONPATH": str(Path(sightline.__file__).parents[1])}
    with subprocess.Popen(command, stdout=-1, stderr=-1, text=True, env=environment) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        server.send_signal(signal.SIGINT)
        out, error = server.communicate(timeout=30)
    assert line.startswith("http://127.0.0.1:")
    assert (server.returncode, out, error) == (0, "", "")
