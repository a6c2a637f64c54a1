"""The table of `sightline lra`: a task of the Long Range Arena with several mechanisms, next to published results.

Every run keeps its row in its own folder, so that several processes can fill one table.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from sightline.tasks.sequences.config import Config
from sightline.tasks.sequences.data import open_splits
from sightline.tasks.sequences.model import build
from sightline.tasks.sequences.published import MECHANISMS
from sightline.util.errors import FileError, InputError
from sightline.util.files import read_json, write_text

DEFAULT_MECHANISMS = ("softmax", "linear", "inline", "soft", "soft_norm", "nystromformer(landmarks=128,kernel=35)")
RESULTS = "results.json"
ROW = "row.json"  # of a run
Row = dict[str, object]


def published_as(name: str) -> str | None:
    """The row of the published table that a mechanism is, whatever its options."""
    plain = {text.partition("(")[0]: title for title, text in MECHANISMS.items()}
    return plain.get(name.partition("(")[0])


def check_runs(configs: Sequence[Config]) -> None:
    """Build every model on the meta device, and read the user's own test split, before anything is trained."""
    for config in configs:
        with torch.device("meta"):
            build(replace(config.model, checkpoint=None), config.data)
    if configs[0].data.path is not None:
        open_splits(configs[0].data, configs[0].data.path, lambda *_: None, ("test",))


def keep_row(folder: Path, run: Path, task: str, row: Row) -> None:
    """Write the row of a run, and a table of the rows of all runs.

    Other processes may do the same for their runs. Each reads the rows again after writing the table, so the last
    writer has them all.
    """
    _write(run / ROW, {"task": task, **row})
    rows = None
    while rows != (found := _all_rows(folder, task)):
        rows = found
        _write(folder / RESULTS, {"task": task, "rows": rows})


def _write(path: Path, facts: Row) -> None:
    write_text(path, json.dumps(facts, indent=1) + "\n")


def _all_rows(folder: Path, task: str) -> list[Row]:
    """The rows of all runs of a task, and those of a table without such files; the default mechanisms first."""
    runs = {path: read_json(path) for path in folder.glob(f"*/{ROW}")}
    rows = [{key: row[key] for key in row if key != "task"} for row in runs.values() if row.get("task") == task]
    names = {row.get("attention") for row in rows}
    rows += [row for row in read_rows(folder / RESULTS, task) if row.get("attention") not in names]
    rank = {name: number for number, name in enumerate(DEFAULT_MECHANISMS)}
    return sorted(rows, key=lambda row: (rank.get(str(row.get("attention")), len(rank)), str(row.get("attention"))))


def read_rows(path: Path, task: str) -> list[Row]:
    """The rows of a table that was written before."""
    found = read_json(path)
    rows, other = found.get("rows", []), found.get("task", task)
    if other != task:
        raise InputError(f"--out: {path} is the table of {other}; give another folder")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise FileError(f"{path} is not what sightline wrote; remove it and run the command again")
    return rows
