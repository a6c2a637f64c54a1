"""The table of `sightline lra`: a task of the Long Range Arena with several mechanisms, next to published results.

Every run keeps its row in its own folder, so that several processes can fill one table.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import torch
from pydantic import TypeAdapter

from sightline.tasks.sequences.config import Config, TaskName
from sightline.tasks.sequences.data import open_splits
from sightline.tasks.sequences.model import build
from sightline.util.documents import check, read_object
from sightline.util.errors import InputError
from sightline.util.files import write_json

DEFAULT_MECHANISMS = ("softmax", "linear", "inline", "soft", "soft_norm", "nystromformer(landmarks=128,kernel=35)")
# Accuracies in percent at the size of the recipes `lra_*`, from Nystromformer: A Nystrom-Based Algorithm for
# Approximating Self-Attention (AAAI 2021), as the SOFT++ paper (IJCV 2024) quotes them.
PUBLISHED: dict[str, dict[str, float]] = {
    name: dict(zip(get_args(TaskName), scores, strict=True))
    for name, scores in {
        "Transformer": (37.1, 65.0, 79.4, 38.2, 74.2),
        "Linformer": (37.3, 55.9, 79.4, 37.8, 67.6),
        "Performer": (18.8, 63.8, 78.6, 37.1, 69.9),
        "Nystromformer": (37.2, 65.5, 79.6, 41.6, 70.9),
    }.items()
}
TITLES = {
    "softmax": "Transformer", "linformer": "Linformer", "performer": "Performer", "nystromformer": "Nystromformer",
}  # fmt: skip
RESULTS, ROW = "results.json", "row.json"  # of a table, of a run
Row = dict[str, Any]  # JSON
ROWS = TypeAdapter(list[Row])


def run_folder(folder: Path, attention: str) -> Path:
    """The folder of the run with a mechanism: `soft(ratio=2)` -> `soft_ratio_2`."""
    return folder / re.sub(r"[^A-Za-z0-9]+", "_", attention).strip("_")


def check_runs(folder: Path, task: str, configs: Sequence[Config]) -> None:
    """Read the table, build every model on the meta device, and read the user's own test split, before any training."""
    _table_rows(folder, task)
    for config in configs:
        with torch.device("meta"):
            build(replace(config.model, checkpoint=None), config.data)
    if configs[0].data.path is not None:
        open_splits(configs[0].data, splits=("test",))


def keep_row(folder: Path, task: str, row: Row) -> None:
    """Write the row of a run, and a table of the rows of all runs.

    Other processes may do the same for their runs. Each reads the rows again after writing the table, so the last
    writer has them all.
    """
    write_json(run_folder(folder, row["attention"]) / ROW, {"task": task, **row})
    rows = None
    while rows != (found := _all_rows(folder, task)):
        rows = found
        write_json(folder / RESULTS, {"task": task, "rows": rows})


def _all_rows(folder: Path, task: str) -> list[Row]:
    """The rows of all runs of a task, and those of a table without such files; the default mechanisms first."""
    runs = [read_object(path) for path in folder.glob(f"*/{ROW}")]
    rows = {str(row.get("attention")): row for row in _table_rows(folder, task)}
    rows |= {str(row.get("attention")): row for row in runs if row.pop("task", None) == task}
    rank = {name: number for number, name in enumerate(DEFAULT_MECHANISMS)}
    return [rows[name] for name in sorted(rows, key=lambda name: (rank.get(name, len(rank)), name))]


def _table_rows(folder: Path, task: str) -> list[Row]:
    """The rows of a table that was written before."""
    path = folder / RESULTS
    found = read_object(path)
    if (other := found.get("task", task)) != task:
        raise InputError(f"--out: {path} is the table of {other}; give another folder")
    return check(ROWS, found.get("rows", []), path)
