"""Tables: rich on a terminal, plain and as wide as they must be in a pipe or a file."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Column:
    """A title; `right` for numbers; `wide` columns are left out where the terminal is too narrow."""

    title: str
    right: bool = False
    wide: bool = False


def show(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print a table to the standard output."""
    if sys.stdout is not None and sys.stdout.isatty():
        _rich(columns, rows)
        return
    for line in plain(columns, rows):
        print(line)


def plain(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table without frames, two spaces between columns, nothing cut off."""
    cells = [[column.title for column in columns], *rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    return [
        "  ".join(
            cell.rjust(width) if column.right else cell.ljust(width)
            for cell, width, column in zip(row, widths, columns, strict=True)
        ).rstrip()
        for row in cells
    ]


def _rich(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    shown = _fitting(columns, rows, console.width)
    table = Table(box=SIMPLE, pad_edge=False)
    for i in shown:
        justify: Literal["left", "right"] = "right" if columns[i].right else "left"
        table.add_column(columns[i].title, justify=justify, no_wrap=not i, overflow="fold")
    for row in rows:
        table.add_row(*(escape(row[i]) for i in shown))
    with console.capture() as text:
        console.print(table)
    sys.stdout.write(text.get())
    if hidden := [column.title for i, column in enumerate(columns) if i not in shown]:
        print(f"A wider terminal, a pipe or --json shows also: {', '.join(hidden)}.")


def _fitting(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """The columns to show: wide ones are left out, the first one first, until the rest fits."""
    shown = list(range(len(columns)))
    for i in [i for i in shown if columns[i].wide]:
        lines = plain([columns[j] for j in shown], [[row[j] for j in shown] for row in rows])
        if max(map(len, lines)) < width:
            break
        shown.remove(i)
    return shown
