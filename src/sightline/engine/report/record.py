"""What a run wrote about itself, read back for its report."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from sightline.engine.settings import DEFAULT_TASK, TASK
from sightline.tasks.registry import TASKS


@dataclass(frozen=True)
class Record:
    """The files of a run folder.

    Attributes:
        name: of the folder.
        config: sections of the resolved configuration.
        versions: of everything, with device and command.
        rows: of the metrics, in the order of epochs.
        classes: names, in the order of the labels.
        confusion: counts, a row for every true class; None where the run wrote none.
        found: scores by class of a detector, `class` and the metrics in percent.
    """

    name: str
    config: dict[str, Any]
    versions: dict[str, Any]
    rows: list[dict[str, Any]]
    classes: list[str]
    confusion: list[list[int]] | None
    found: list[dict[str, Any]] = field(default_factory=list)

    @property
    def task(self) -> str:
        """What was trained for."""
        task = self.config.get(TASK)
        return task if task in TASKS else DEFAULT_TASK

    @property
    def unit(self) -> str:
        """What was trained on."""
        return TASKS[self.task].unit

    def series(self, key: str) -> tuple[list[float], list[float]]:
        """Epochs and values of a metric, where it was measured."""
        points = [(row["epoch"], row[key]) for row in self.rows if _is_number(row.get(key)) and "epoch" in row]
        return [float(epoch) for epoch, _ in points], [float(value) for _, value in points]

    def best(self) -> dict[str, Any]:
        """The row with the highest score of the task; empty where nothing was evaluated."""
        score = TASKS[self.task].best
        measured = [row for row in self.rows if _is_number(row.get(score))]
        return max(measured, key=lambda row: row[score], default={})


def read_record(folder: Path) -> Record:
    """Read a run folder; lines of the metrics that were cut short are passed over.

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
    return Record(
        folder.resolve().name,
        config,
        _json(folder / "versions.json", {}),
        _rows(folder / "metrics.jsonl"),
        [str(name) for name in _json(folder / "classes.json", [])],
        confusion if isinstance(confusion, list) and confusion else None,
        _found(_json(folder / "per_class.json", [])),
    )


def _found(rows: Any) -> list[dict[str, Any]]:
    """The rows of a detector, with a number or None for every score."""
    rows = rows if isinstance(rows, list) else []
    kept = [row for row in rows if isinstance(row, dict) and "box_ap" in row]
    return [{k: v if k == "class" or _is_number(v) else None for k, v in row.items()} for row in kept]


def _json(path: Path, otherwise: Any) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return otherwise


def _rows(path: Path) -> list[dict[str, Any]]:
    rows = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else ():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value
