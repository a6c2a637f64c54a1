"""Text on its way to a terminal, a log or a figure: names in files may hold escape sequences, or megabytes."""

import re
import sys
from typing import TextIO

# Control characters, line separators, bidirectional overrides and halves of surrogate pairs.
UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
ARGUMENT = re.compile(r"(?<=\b(?:pass|give) )([a-z_]+)(?:\.[a-z_]+)?=")
LINE, NAME = 2000, 200  # most characters of a printed line, and of a name in a table or figure


def printable(text: object, most: int = LINE) -> str:
    """Text as one line of at most `most` characters; control characters become `\\x1b` and the like.

    Example:
        >>> printable("\\x1b[31mred")
        '\\\\x1b[31mred'
    """
    line = str(text)
    cut = len(line) > most
    line = UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode(), line[: most + 1])
    return f"{line[: most - 3]}..." if cut or len(line) > most else line


def one_line(text: object, most: int = LINE) -> str:
    """`printable` text whose line breaks and runs of blanks became single blanks."""
    return printable(" ".join(str(text)[: 8 * most].split()), most)


def as_options(text: str) -> str:
    """A message that asks for arguments, for a command line.

    Example:
        >>> as_options("pass on_error=skip, or give data.limit=9")
        'pass --on-error skip, or give --data.limit 9'
    """
    return ARGUMENT.sub(lambda found: f"--{found[0][:-1] if '.' in found[0] else found[1].replace('_', '-')} ", text)


def say(*lines: object, file: TextIO | None = None) -> None:
    """Print lines, each of them `printable`. Every command prints through this function, JSON and YAML excepted."""
    stream = sys.stdout if file is None else file
    encoding = getattr(stream, "encoding", None) or "utf-8"
    text = "\n".join(map(printable, lines))
    print(text.encode(encoding, "backslashreplace").decode(encoding), file=stream, flush=True)
