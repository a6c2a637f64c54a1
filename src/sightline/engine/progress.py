"""What a run prints: a bar on a terminal, lines elsewhere, nothing in processes other than the first."""

import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class ProgressPrinter:
    """Prints speed, loss and the remaining time.

    Args:
        active: whether to print anything.
        epochs, steps: epochs of the run and updates per epoch.
        batch: examples per update.
        every: updates between lines if there is no terminal.
        unit: what the examples are.
    """

    def __init__(self, active: bool, epochs: int, steps: int, batch: int, every: int, unit: str = "images") -> None:
        self.active, self.epochs, self.steps = active, epochs, steps
        self.batch, self.every, self.unit = batch, every, unit
        self.bar: Progress | None = None
        self._task: TaskID | None = None
        self._start = 0.0
        self._done = 0
        if active and sys.stdout.isatty():
            self.bar = _bar()
            self.bar.start()

    def line(self, text: str) -> None:
        """Print a line."""
        if not self.active:
            return
        if self.bar is None:
            print(text, flush=True)
        else:
            self.bar.console.print(text, markup=False, highlight=False)

    def begin(self, epoch: int, batch: int) -> None:
        """Start an epoch at its update `batch`."""
        self._start, self._done = time.perf_counter(), 0
        if self.bar is not None:
            self._reset(f"epoch {epoch + 1}/{self.epochs}", self.steps, batch)

    def update(self, epoch: int, batch: int, loss: float | None, lr: float) -> None:
        """Report that `batch` updates of the epoch are done."""
        self._done += 1
        if not self.active:
            return
        shown = "-" if loss is None else f"{loss:.3f}"
        remaining = ((self.epochs - epoch) * self.steps - batch) * self.batch / self.rate()
        text = f"{self.rate():,.0f} {self.unit}/s, loss {shown}, {clock(remaining)} left"
        if self.bar is not None and self._task is not None:
            self.bar.update(self._task, completed=batch, text=text)
        elif batch % self.every == 0:
            self.line(f"epoch {epoch + 1}/{self.epochs}, update {batch}/{self.steps}: {text}, lr {lr:.2e}")

    def rate(self) -> float:
        """Examples per second since the epoch, or this part of it, began."""
        return self._done * self.batch / max(time.perf_counter() - self._start, 1e-9)

    def note(self, what: str, done: int, total: int) -> None:
        """Show the progress of something other than training, such as evaluation, on a terminal."""
        if self.bar is not None:
            if self._task is None or self.bar.tasks[0].description != what:
                self._reset(what, total, 0)
            assert self._task is not None
            self.bar.update(self._task, completed=done, text=f"{done:,} of {total:,}")

    def stop(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def _reset(self, what: str, total: int, done: int) -> None:
        assert self.bar is not None
        if self._task is not None:
            self.bar.remove_task(self._task)
        self._task = self.bar.add_task(what, total=total, completed=done, text="")


def _bar() -> "Progress":
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[text]}"))
    return Progress(*columns, transient=True)


def clock(seconds: float) -> str:
    """Seconds as 0:07, 12:30 or 3:05:00."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
