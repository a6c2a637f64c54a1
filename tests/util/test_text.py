"""Text that is printed: escaped, cut to a line, in any encoding."""

import io

import pytest

from sightline.util.text import LINE, as_options, one_line, printable, say


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\udcff", "\\udcff"),
        ("\x9b1m", "\\x9b1m"),
        ("Bücher ✓", "Bücher ✓"),
    ],
)
def test_control_characters(text: str, shown: str) -> None:
    assert printable(text) == shown


@pytest.mark.parametrize("text", ["x" * 10**7, "\x1b" * 10**6, "a b " * 10**6])
def test_long_text(text: str) -> None:
    for line in (printable(text), one_line(text)):
        assert len(line) == LINE
        assert line.endswith("...")


def test_lines_are_those_that_are_given(capsys: pytest.CaptureFixture[str]) -> None:
    say("", "a\nb", 3)
    assert capsys.readouterr().out == "\na\\nb\n3\n"


def test_an_encoding_that_lacks_a_letter() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    say("Bücher", file=stream)
    stream.seek(0)
    assert stream.read() == "B\\xfccher\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("or pass on_error=skip", "or pass --on-error skip"),
        ("give data.on_error=skip.", "give --data.on_error skip."),
        ("batch.size=9 is more than 3", "batch.size=9 is more than 3"),
        ("with prefix=0; give them", "with prefix=0; give them"),
    ],
)
def test_arguments_become_options(text: str, shown: str) -> None:
    assert as_options(text) == shown
