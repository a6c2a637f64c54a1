"""The command as a whole: help, version, exit statuses, and one line for whatever goes wrong."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import sightline
from sightline.cli import main as cli
from sightline.cli.main import COMMANDS, main

SOURCE = Path(sightline.__file__).parents[1]
PYTHON = {**os.environ, "PYTHONPATH": str(SOURCE)}
# The package stood in for, so that only what the command line itself imports is loaded.
WITHOUT_TORCH = f"""
import sys, types
package = types.ModuleType("sightline")
package.__path__, package.__version__ = [{str(SOURCE / "sightline")!r}], "1.2.3"
sys.modules["sightline"] = package
from sightline.cli.main import COMMANDS, main
for arguments in (["--help"], ["--version"], *([name, "--help"] for name in COMMANDS), ["lst"], []):
    assert main(arguments) == (0 if arguments and arguments[-1].startswith("--") else 2), arguments
assert not {{"torch", "timm", "numpy", "rich"}} & set(sys.modules)
"""


def test_help_and_version_import_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], env=PYTHON, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "sightline 1.2.3" in done.stdout
    assert all(name in done.stdout for name in COMMANDS)


def test_the_real_command_answers_help_without_torch() -> None:
    run = [sys.executable, "-X", "importtime", "-m", "sightline", "--help"]
    done = subprocess.run(run, env=PYTHON, capture_output=True, text=True)
    assert done.returncode == 0
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "sightline.cli.main" in imported
    assert not {"torch", "timm", "numpy", "rich"} & imported


def test_module_exits_with_two_and_one_line() -> None:
    run = [sys.executable, "-m", "sightline", "info", "inline_deit_tny"]
    done = subprocess.run(run, env=PYTHON, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "sightline: error: no model 'inline_deit_tny'; did you mean 'inline_deit_tiny'?\n"


def test_closed_pipe_is_silent() -> None:
    read, write = os.pipe()
    os.close(read)
    run = [sys.executable, "-m", "sightline", "list"]
    done = subprocess.run(run, env=PYTHON, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert done.returncode == 141
    assert done.stderr == ""


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("usage: sightline")
    assert f"  sightline {name}" in shown
    assert max(map(len, shown.splitlines())) <= 100


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], f"no command; give one of {', '.join(COMMANDS)}, or --help"),
        (["lst"], "no command 'lst'; did you mean 'list'?"),
        (["xyzzy"], f"no command 'xyzzy'; give one of {', '.join(COMMANDS)}"),
        (["list", "--jsn"], "--jsn; see `sightline list --help`"),
        (["info"], "NAME"),
        (["info", "a", "b"], "b; see `sightline info --help`"),
        (["info", "inline_deit_tiny", "--num-classes", "x"], "--num-classes: 'x' is not a whole number"),
        (["info", "inline_deit_tiny", "--num-classes"], "--num-classes"),
        (["convert", "a.pth"], "OUT"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("sightline: error: ")
    assert message in err
    assert err.count("\n") == 1


def _raising(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(options: object) -> None:
        raise error

    monkeypatch.setitem(cli.COMMANDS, "list", replace(COMMANDS["list"], run=run))


def test_interrupt(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _raising(KeyboardInterrupt(), monkeypatch)
    assert main(["list"]) == 130
    assert capsys.readouterr().err == "sightline: interrupted\n"


def test_errors_of_many_lines_become_one(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _raising(ValueError("first\n  second"), monkeypatch)
    assert main(["list"]) == 2
    assert capsys.readouterr().err == "sightline: error: first second\n"


def test_a_bug_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    _raising(KeyError("oops"), monkeypatch)
    with pytest.raises(KeyError):
        main(["list"])
