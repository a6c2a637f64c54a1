"""What commands print: lines, tables, progress bars, JSON; and no warnings of libraries."""

import json
import logging
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TextIO

from sightline.util.errors import WeightsWarning
from sightline.util.files import jsonable

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

LOGGERS = ("accelerate", "datasets", "huggingface_hub", "timm", "torch", "torch.utils.cpp_extension")
# Control characters, line separators, bidirectional overrides and halves of surrogate pairs.
UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
LONGEST = 2000  # characters of a line


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the warnings of libraries, unless python -W or PYTHONWARNINGS asks for them; errors still show."""
    before = {name: logging.getLogger(name).level for name in LOGGERS}
    with warnings.catch_warnings():
        if not sys.warnoptions:
            warnings.simplefilter("ignore")
            warnings.simplefilter("default", WeightsWarning)
            warnings.showwarning = _show_warning
            for name in LOGGERS:
                logging.getLogger(name).setLevel(logging.ERROR)
        try:
            yield
        finally:
            for name, level in before.items():
                logging.getLogger(name).setLevel(level)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print one of our own warnings as one line."""
    print(f"sightline: warning: {one_line(str(message))}", file=sys.stderr, flush=True)


def escaped(text: str) -> str:
    """Text from a file, safe to print: control characters become `\\x1b` and the like."""
    return UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def one_line(text: str) -> str:
    """Text as one line of bounded length, without control characters."""
    line = escaped(" ".join(text.split()))
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 3]}..."


@dataclass(frozen=True)
class Column:
    """A title; `right` for numbers; `wide` columns are dropped if the terminal is too narrow."""

    title: str
    right: bool = False
    wide: bool = False


def show(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print a table: drawn by rich on a terminal, plain and as wide as needed in a pipe or a file."""
    rows = [[escaped(cell) for cell in row] for row in rows]
    if sys.stdout is not None and sys.stdout.isatty():
        _show_rich(columns, rows)
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
        print(f"A wider terminal, a pipe or --json also shows: {', '.join(hidden)}.")


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
        self.unit, self.total, self.count, self.label = unit, total, 0, ""
        self.start = time.monotonic()
        self._bar: Bar | None = None

    def __enter__(self) -> "Progress":
        if sys.stderr is not None and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            columns = (BarColumn(20), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"), TimeElapsedColumn(),
                       TextColumn("left"), TimeRemainingColumn(), TextColumn("{task.description}"))  # fmt: skip
            self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
            self._bar.start()
            self._bar.add_task("", total=self.total, rate="")
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begin(self, label: str) -> None:
        """Name the step that starts now."""
        self.label = label
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], description=label)

    def step(self, label: str) -> None:
        """Count a step that is named only when it is done."""
        self.begin(label)
        self.done()

    def done(self, result: str = "") -> None:
        """Count a step."""
        self.count += 1
        pace = (time.monotonic() - self.start) / self.count
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], advance=1, rate=f"{pace:.1f} s each")
        elif sys.stderr is not None:
            rate = f"{pace:.1f} s each, about {pace * max(self.total - self.count, 0):.0f} s left"
            line = f"[{self.count}/{self.total} {self.unit}, {rate}] {self.label}: {result}"
            print(line, file=sys.stderr, flush=True)


@contextmanager
def bar(total: int, title: str) -> Iterator[Callable[[int], None]]:
    """A progress bar over `total` images on a terminal, nothing in a file; yields the function that advances it."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text("" if task.speed is None else f"{task.speed:,.0f} images/s")

    console = Console(stderr=True)
    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), Rate(), TimeRemainingColumn())
    with Bar(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, total=total)
        yield lambda count: progress.advance(task, count)


def print_json(value: object) -> None:
    """Print a value as JSON; NaN and infinities become null."""
    print(json.dumps(jsonable(value), indent=2))
