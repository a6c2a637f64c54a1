"""The files of a run folder, read for its report."""

import math
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter

from sightline.engine import records
from sightline.engine.records import Row, Scores
from sightline.engine.settings import DEFAULT_TASK, TASK
from sightline.tasks.registry import TASKS, TaskSpec
from sightline.util.documents import OBJECT, read_json
from sightline.util.errors import FileError

T = TypeVar("T")


@dataclass(frozen=True)
class Record:
    """The files of a run folder.

    Args:
        name: of the folder.
        config: task and sections of the resolved configuration.
        versions: of everything, with device and command.
        rows: of the metrics, in the order of epochs.
        classes: names, in the order of the labels.
        confusion: counts, one row per true class; empty if the run wrote none.
        found: scores by class in place of a confusion matrix: `class` and the metrics in percent.
    """

    name: str
    config: dict[str, Any]
    versions: dict[str, Any]
    rows: list[Row]
    classes: list[str]
    confusion: list[list[int]]
    found: list[Scores] = field(default_factory=list)

    @property
    def spec(self) -> TaskSpec:
        """The task that was trained for."""
        return TASKS.get(self.config[TASK], TASKS[DEFAULT_TASK])

    def series(self, key: str) -> dict[float, float]:
        """The values of a metric by epoch, for the epochs in which it was measured."""
        points = ((row["epoch"], row.get(key)) for row in self.rows)
        return {epoch: value for epoch, value in points if epoch and value is not None and math.isfinite(value)}

    def best(self) -> Row:
        """The row with the highest score of the task; empty if nothing was evaluated."""
        scores = self.series(self.spec.best)
        epoch = max(scores, key=lambda epoch: scores[epoch], default=None)
        return next((row for row in self.rows if row["epoch"] == epoch), {})


def read_record(folder: Path) -> Record:
    """Read a run folder; what is missing or damaged is left out.

    Raises:
        FileError: it is not the folder of a run.
    """

    def read(name: str, adapter: TypeAdapter[T], default: T) -> T:
        with suppress(FileError):
            return read_json(folder / name, adapter)
        return default

    record = Record(
        folder.resolve().name,
        records.read_config(folder),
        read(records.VERSIONS, OBJECT, {}),
        records.read_rows(folder),
        read(records.CLASSES, records.NAMES, []),
        read(records.CONFUSION, records.COUNTS, []),
    )
    found = read(records.PER_CLASS, records.SCORES, [])
    return replace(record, found=[row for row in found if not isinstance(row.get(record.spec.best, ""), str)])
