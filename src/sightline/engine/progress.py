"""What a run prints: a bar on a terminal, lines elsewhere, nothing in processes other than the first."""

import sys
import time

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from sightline.util.names import format_rate
from sightline.util.text import printable, say

PATIENCE = 5.0  # seconds of updates before the first estimate, if there is no line before


class ProgressPrinter:
    """Prints speed, loss and the remaining time.

    Args:
        active: whether to print anything.
        epochs, steps: epochs of the run and updates per epoch.
        updates: of the whole run; fewer than those of the epochs if it is limited.
        batch: examples per update.
        every: updates between lines if there is no terminal.
        unit: what the examples are.
    """

    def __init__(
        self, active: bool, epochs: int, steps: int, updates: int, batch: int, every: int, unit: str = "images"
    ) -> None:
        self.active, self.epochs, self.steps, self.updates = active, epochs, steps, updates
        self.batch, self.every, self.unit = batch, every, unit
        self._start = 0.0
        self._done = 0
        self._estimated = False
        texts = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[text]}"))
        self._bar = Progress(*texts, transient=True, disable=not active or not sys.stdout.isatty())
        self._task = self._bar.add_task("", text="")
        self._bar.start()

    def line(self, text: str) -> None:
        """Print a line."""
        if self.active and self._bar.disable:
            say(text)
        elif self.active:
            self._bar.console.print(printable(text), markup=False, highlight=False)

    def plan(self) -> None:
        """Say what the whole run takes."""
        whole = self.epochs * self.steps
        updates = f"{self.updates:,}{f' of {whole:,}' if self.updates < whole else ''} updates"
        epochs = f"{self.steps:,} per epoch, {self.epochs:,} epoch{'s' * (self.epochs != 1)}"
        self.line(f"to do: {updates} with {self.batch:,} {self.unit} each, {epochs}")

    def begin(self, epoch: int, batch: int) -> None:
        """Start an epoch at its update `batch`."""
        self._start, self._done = time.perf_counter(), 0
        self.show(f"epoch {epoch + 1}/{self.epochs}", batch, self.steps)

    def update(self, epoch: int, batch: int, loss: float | None, lr: float) -> None:
        """Report that `batch` updates of the epoch are done."""
        self._done += 1
        shown = "-" if loss is None else f"{loss:.3f}"
        updates = self.updates - epoch * self.steps - batch
        remaining = clock(updates * self.batch / self.rate())
        rate = format_rate(self.rate(), self.unit)
        text = f"{rate}, loss {shown}, {remaining} left"
        self._bar.update(self._task, completed=batch, text=text)
        if self._bar.disable and batch % self.every == 0:
            self.line(f"epoch {epoch + 1}/{self.epochs}, update {batch}/{self.steps}: {text}, lr {lr:.2e}")
        elif self._bar.disable and updates > 1 and not self._estimated and self._elapsed() > PATIENCE:
            self.line(f"about {remaining} for {updates:,} more updates, at {rate}; evaluation comes on top")
        self._estimated = self._estimated or self._elapsed() > PATIENCE

    def rate(self) -> float:
        """Examples per second since the epoch, or this part of it, began."""
        return self._done * self.batch / max(self._elapsed(), 1e-9)

    def _elapsed(self) -> float:
        return time.perf_counter() - self._start

    def show(self, what: str, done: int, total: int) -> None:
        """Show the progress of something on the bar, such as evaluation."""
        self._bar.update(self._task, description=what, completed=done, total=total, text="")

    def stop(self) -> None:
        """Remove the bar; lines are printed as without a terminal."""
        self._bar.stop()
        self._bar.disable = True


def clock(seconds: float) -> str:
    """Seconds as 0:07, 12:30 or 3:05:00."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
