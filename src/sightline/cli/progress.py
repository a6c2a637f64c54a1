"""Progress of a long command, on the standard error: over steps (`Progress`) or over many images (`bar`)."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any


class Progress:
    """Counts steps, with a rate and an estimate of what is left: a bar on a terminal, a line a step in a file.

    Example:
        with Progress("cases", 12) as progress:
            progress.begin("deit_tiny_224 forward")
            ...
            progress.done("0.031 ms")
    """

    def __init__(self, unit: str, total: int) -> None:
        self.unit, self.total, self.count, self.label = unit, total, 0, ""
        self.start = time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> "Progress":
        if sys.stderr is not None and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            columns = (BarColumn(20), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"), TimeElapsedColumn(),
                       TextColumn("left"), TimeRemainingColumn(), TextColumn("{task.description}"))  # fmt: skip
            self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task("", total=self.total, rate="")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begin(self, label: str) -> None:
        """Say what is going on now."""
        self.label = label
        if self._bar is not None:
            self._bar.update(self._task, description=label)

    def step(self, label: str) -> None:
        """One step more, known only when it is done."""
        self.begin(label)
        self.done()

    def done(self, result: str = "") -> None:
        """One step more."""
        self.count += 1
        seconds = time.monotonic() - self.start
        if self._bar is not None:
            self._bar.update(self._task, advance=1, rate=f"{seconds / self.count:.1f} s each")
        elif sys.stderr is not None:
            left = seconds / self.count * max(self.total - self.count, 0)
            pace = f"{seconds / self.count:.1f} s each, about {left:.0f} s left"
            print(
                f"[{self.count}/{self.total} {self.unit}, {pace}] {self.label}: {result}", file=sys.stderr, flush=True
            )


@contextmanager
def bar(total: int, title: str) -> Iterator[Callable[[int], None]]:
    """A bar for `total` images on a terminal, nothing in a file; gives the function that moves it on by so many."""
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
