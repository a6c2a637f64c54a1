"""The files of a run folder, read for its report."""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from sightline.engine.settings import DEFAULT_TASK, TASK
from sightline.tasks.registry import TASKS, TaskSpec

Json = dict[str, Any]


@dataclass(frozen=True)
class Record:
    """The files of a run folder.

    Args:
        name: of the folder.
        config: sections of the resolved configuration.
        versions: of everything, with device and command.
        rows: of the metrics, in the order of epochs.
        classes: names, in the order of the labels.
        confusion: counts, one row per true class; None if the run wrote none.
        found: scores by class in place of a confusion matrix: `class` and the metrics in percent.
    """

    name: str
    config: Json
    versions: Json
    rows: list[Json]
    classes: list[str]
    confusion: list[list[int]] | None
    found: list[Json] = field(default_factory=list)

    @property
    def spec(self) -> TaskSpec:
        """The task that was trained for."""
        return TASKS.get(str(self.config.get(TASK)), TASKS[DEFAULT_TASK])

    def series(self, key: str) -> tuple[list[float], list[float]]:
        """Epochs and values of a metric, for the epochs in which it was measured."""
        points = [(row["epoch"], row[key]) for row in self.rows if _is_number(row.get(key)) and "epoch" in row]
        return [float(epoch) for epoch, _ in points], [float(value) for _, value in points]

    def best(self) -> Json:
        """The row with the highest score of the task; empty if nothing was evaluated."""
        score = self.spec.best
        measured = [row for row in self.rows if _is_number(row.get(score))]
        return max(measured, key=lambda row: row[score], default={})


def read_record(folder: Path) -> Record:
    """Read a run folder; truncated lines of the metrics are skipped.

    Raises:
        ValueError: it is not the folder of a run.
    """
    try:
        config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{folder}: not the folder of a run, which has a config.yaml") from error
    if not isinstance(config, dict):
        raise ValueError(f"{folder}: config.yaml holds no configuration")
    confusion = _json(folder / "confusion.json", None)
    if isinstance(confusion, dict):
        confusion = confusion.get("counts")
    record = Record(
        folder.resolve().name,
        config,
        _json(folder / "versions.json", {}),
        _rows(folder / "metrics.jsonl"),
        [str(name) for name in _json(folder / "classes.json", [])],
        confusion if isinstance(confusion, list) and confusion else None,
    )
    return replace(record, found=_found(_json(folder / "per_class.json", []), record.spec.best))


def _found(rows: object, metric: str) -> list[Json]:
    """The rows that have the metric, with a number or None for every score."""
    kept = [row for row in rows if isinstance(row, dict) and metric in row] if isinstance(rows, list) else []
    return [{k: v if k == "class" or _is_number(v) else None for k, v in row.items()} for row in kept]


def _json(path: Path, default: Any) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return default


def _rows(path: Path) -> list[Json]:
    rows = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else ():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value
