"""The command as a whole: help, version, exit statuses, and one line for whatever goes wrong."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import pytest

import sightline
from sightline.cli import main as cli
from sightline.cli.main import COMMANDS, main
from sightline.cli.options import Command, name_options, option, parse, positional
from sightline.cli.output import Column, one_line, show
from sightline.util.errors import InputError

SOURCE = Path(sightline.__file__).parents[1]
PYTHON = {**os.environ, "PYTHONPATH": str(SOURCE)}
UNREGISTERED = {**PYTHON, "SIGHTLINE_REGISTER": "0"}  # starts without torch
# A stand-in for the package, so that only what the command line itself imports is loaded.
WITHOUT_TORCH = f"""
import sys, types
package = types.ModuleType("sightline")
package.__path__ = [{str(SOURCE / "sightline")!r}]
sys.modules["sightline"] = package
from sightline.cli.main import COMMANDS, main
for arguments in (["--help"], ["--version"], *([name, "--help"] for name in COMMANDS), ["lst"], []):
    assert main(arguments) == (0 if arguments and arguments[-1].startswith("--") else 2), arguments
assert not {{"torch", "timm", "numpy", "rich"}} & set(sys.modules)
"""


def test_help_and_version_import_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], env=PYTHON, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"sightline {sightline.__version__}" in done.stdout
    assert all(name in done.stdout for name in COMMANDS)


def test_the_real_command_answers_help_without_torch() -> None:
    script = "import sys; sys.argv = ['sightline', '--help']; from sightline_command import main; sys.exit(main())"
    run = [sys.executable, "-X", "importtime", "-c", script]
    done = subprocess.run(run, env=PYTHON, capture_output=True, text=True)
    assert done.returncode == 0
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "sightline.cli.main" in imported
    assert not {"torch", "timm", "numpy", "rich"} & imported


def test_module_exits_with_two_and_one_line() -> None:
    run = [sys.executable, "-m", "sightline", "lst"]
    done = subprocess.run(run, env=UNREGISTERED, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("sightline: error: ")
    assert "'lst'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_closed_pipe_is_silent() -> None:
    read, write = os.pipe()
    os.close(read)
    run = [sys.executable, "-m", "sightline", "--version"]
    done = subprocess.run(run, env=UNREGISTERED, stdout=write, stderr=subprocess.PIPE, text=True)
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
    ("arguments", "words"),
    [
        ([], [*COMMANDS, "--help"]),
        (["lst"], ["'lst'", "did you mean 'list'?"]),
        (["xyzzy"], ["'xyzzy'", *COMMANDS]),
        (["list", "--jsn"], ["--jsn", "did you mean '--json'?", "`sightline list --help`"]),
        (["eval", "--chekpoint", "x"], ["--chekpoint", "did you mean '--checkpoint'?", "`sightline eval --help`"]),
        (["info"], ["NAME", "`sightline info --help`"]),
        (["info", "a", "b"], ["'b'", "`sightline info --help`"]),
        (["info", "inline_deit_tiny", "--num-classes", "x"], ["--num-classes", "'x'"]),
        (["info", "inline_deit_tiny", "--num-classes"], ["--num-classes"]),
        (["convert", "a.pth"], ["OUT"]),
        (["analyze", "maps", "a.png", "--view", "layer"], ["--view", "'layer'", "layers"]),
        (["analyze", "injectivity", "--scale", "x"], ["--scale", "'x'"]),
        (["info", "\x1b[31mred"], ["'\\x1b[31mred'"]),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("sightline: error: ")
    assert all(word in err for word in words), err
    assert err.count("\n") == 1
    assert err[:-1].isprintable()


@dataclass(frozen=True)
class Sample:
    """One field of every kind.

    A second paragraph.
    """

    name: str = positional("a name")
    more: str | None = positional("another", optional=True)
    path: str | None = option("50 % of a path", metavar="PATH")
    count: int | None = option("a count")
    share: float = option("a share", default=0.5)
    kind: Literal["a", "b"] = option("a kind", default="a")
    each: tuple[str, ...] = option("repeatable", default=())
    on: bool = option("a switch", default=False)


SAMPLE = Command(Sample, lambda options: None, help="", examples="", aliases={"-p": "--path"})


def test_options_are_typed_and_text_stays_text() -> None:
    """YAML would read null, 1e3, [1] and yes as something other than text."""
    given = ["null", "1e3", "-p", "yes", "--count", "3", "--share=1e-3", "--each", "[1]", "--each", "b=c", "--on"]
    read = parse(SAMPLE, "sample", given)
    assert read == Sample("null", "1e3", "yes", 3, 0.001, "a", ("[1]", "b=c"), True)
    assert parse(SAMPLE, "sample", ["x"]) == Sample("x")


@pytest.mark.parametrize(("option", "value"), [("--count", "1.5"), ("--count", ""), ("--share", "x"), ("--kind", "c")])
def test_values_of_another_type_are_rejected(option: str, value: str) -> None:
    with pytest.raises(InputError, match=re.escape(option)) as caught:
        parse(SAMPLE, "sample", ["x", option, value])
    assert repr(value) in str(caught.value)


def test_printed_text_has_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    show([Column("name")], [["a\x1b[2Jb"], ["c\nd"], ["\u202eevil"], ["na\u00efve \udcff"]])
    assert capsys.readouterr().out == "name\na\\x1b[2Jb\nc\\nd\n\\u202eevil\nna\u00efve \\udcff\n"
    assert len(one_line("x" * 10_000)) == 2000


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


def test_a_key_is_given_by_set_where_there_is_no_option_for_it() -> None:
    text = "a.jpg: not an image; repair it, or pass data.on_error=skip"
    assert name_options(COMMANDS["linearize"], text).endswith("or pass --set data.on_error=skip")
    assert name_options(COMMANDS["train"], text).endswith("or pass --data.on_error skip")
