"""What commands print: lines, tables, progress bars, JSON; and no warnings of libraries."""

import json
import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TextIO

from sightline.util.errors import WeightsWarning
from sightline.util.files import jsonable
from sightline.util.text import NAME, as_options, one_line, printable, say


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the warnings of libraries, unless python -W or PYTHONWARNINGS asks for them; errors still show."""
    before = logging.root.manager.disable
    with warnings.catch_warnings():
        if not sys.warnoptions:
            warnings.simplefilter("ignore")
            warnings.simplefilter("default", WeightsWarning)
            warnings.showwarning = _show_warning
            logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(before)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """Print one of our own warnings as one line."""
    say(f"sightline: warning: {as_options(one_line(message))}", file=sys.stderr)


@dataclass(frozen=True)
class Column:
    """A title; `right` for numbers; `wide` columns are dropped if the terminal is too narrow."""

    title: str
    right: bool = False
    wide: bool = False


def number(title: str, wide: bool = False) -> Column:
    """A column of numbers."""
    return Column(title, right=True, wide=wide)


def show(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print a table: drawn by rich on a terminal, plain and as wide as needed in a pipe or a file."""
    rows = [[printable(cell, NAME) for cell in row] for row in rows]
    if _is_terminal(sys.stdout):
        _show_rich(columns, rows)
        return
    for line in plain(columns, rows):
        say(line)


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


def _show_rich(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
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
        say(f"A wider terminal, a pipe or --json also shows: {', '.join(hidden)}.")


def _fitting(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """The columns to show: wide ones are dropped, the first one first, until the rest fits."""
    shown = list(range(len(columns)))
    for i in [i for i in shown if columns[i].wide]:
        lines = plain([columns[j] for j in shown], [[row[j] for j in shown] for row in rows])
        if max(map(len, lines)) < width:
            break
        shown.remove(i)
    return shown


class Progress:
    """Progress over steps, on the standard error: a bar on a terminal, a line per step in a file.

    Example:
        with Progress("cases", 12) as progress:
            progress.begin("deit_tiny_224 forward")
            ...
            progress.done("0.031 ms")
    """

    def __init__(self, unit: str, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        self.unit, self.total, self.count, self.label = unit, total, 0, ""
        self.start = time.monotonic()
        columns = (BarColumn(20), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"), TimeElapsedColumn(),
                   TextColumn("left"), TimeRemainingColumn(),
                   TextColumn("{task.description}", markup=False))  # fmt: skip
        console = Console(stderr=True)
        self._bar = Bar(*columns, console=console, transient=True, disable=not _is_terminal(sys.stderr))
        self._task = self._bar.add_task("", total=total, rate="")

    def __enter__(self) -> "Progress":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def begin(self, label: str) -> None:
        """Name the step that starts now."""
        self.label = printable(label, NAME)
        self._bar.update(self._task, description=self.label)

    def step(self, label: str) -> None:
        """Count a step that is named only when it is done."""
        self.begin(label)
        self.done()

    def done(self, result: str = "") -> None:
        """Count a step."""
        self.advance(1)
        if self._bar.disable and sys.stderr is not None:
            rate = f"{self.pace:.1f} s each, about {self.pace * max(self.total - self.count, 0):.0f} s left"
            line = f"[{self.count}/{self.total} {self.unit}, {rate}] {self.label}: {result}"
            say(line, file=sys.stderr)

    def advance(self, count: int) -> None:
        """Count steps on the bar alone."""
        self.count += count
        self.pace = max(time.monotonic() - self.start, 1e-9) / max(self.count, 1)  # seconds per step
        rate = f"{self.pace:.1f} s each" if self.pace > 1 else f"{1 / self.pace:,.0f} {self.unit}/s"
        self._bar.update(self._task, advance=count, rate=rate)


@contextmanager
def bar(total: int, title: str) -> Iterator[Callable[[int], None]]:
    """A progress bar over `total` images on a terminal, nothing in a file; yields the function that advances it."""
    with Progress("images", total) as progress:
        progress.begin(title)
        yield progress.advance


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


def print_json(value: object) -> None:
    """Print a value as JSON; NaN and infinities become null."""
    sys.stdout.write(json.dumps(jsonable(value), indent=2, allow_nan=False) + "\n")
