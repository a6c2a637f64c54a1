"""The table of `sightline lra`: a task of the Long Range Arena with several mechanisms, next to published results.

Every run keeps its row in its own folder, so that several processes can fill one table.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from sightline.tasks.sequences.config import Config
from sightline.tasks.sequences.data import open_splits
from sightline.tasks.sequences.model import build
from sightline.util.errors import FileError, InputError
from sightline.util.files import read_json, write_json

DEFAULT_MECHANISMS = ("softmax", "linear", "inline", "soft", "soft_norm", "nystromformer(landmarks=128,kernel=35)")
# Accuracies in percent at the size of the recipes `lra_*`, from Nystromformer: A Nystrom-Based Algorithm for
# Approximating Self-Attention (AAAI 2021), as the SOFT++ paper (IJCV 2024) quotes them.
TASKS = ("listops", "text", "retrieval", "image", "pathfinder")
PUBLISHED: dict[str, dict[str, float]] = {
    name: dict(zip(TASKS, scores, strict=True))
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
RESULTS = "results.json"
ROW = "row.json"  # of a run
Row = dict[str, object]


def published_as(name: str) -> str | None:
    """The row of the published table that a mechanism is, whatever its options."""
    return TITLES.get(name.partition("(")[0])


def check_runs(configs: Sequence[Config]) -> None:
    """Build every model on the meta device, and read the user's own test split, before anything is trained."""
    for config in configs:
        with torch.device("meta"):
            build(replace(config.model, checkpoint=None), config.data)
    if configs[0].data.path is not None:
        open_splits(configs[0].data, splits=("test",))


def keep_row(folder: Path, run: Path, task: str, row: Row) -> None:
    """Write the row of a run, and a table of the rows of all runs.

    Other processes may do the same for their runs. Each reads the rows again after writing the table, so the last
    writer has them all.
    """
    write_json(run / ROW, {"task": task, **row})
    rows = None
    while rows != (found := _all_rows(folder, task)):
        rows = found
        write_json(folder / RESULTS, {"task": task, "rows": rows})


def _all_rows(folder: Path, task: str) -> list[Row]:
    """The rows of all runs of a task, and those of a table without such files; the default mechanisms first."""
    runs = [read_json(path) for path in folder.glob(f"*/{ROW}")]
    rows = {str(row.get("attention")): row for row in read_rows(folder / RESULTS, task)}
    rows |= {str(row.get("attention")): row for row in runs if row.pop("task", None) == task}
    rank = {name: number for number, name in enumerate(DEFAULT_MECHANISMS)}
    return [rows[name] for name in sorted(rows, key=lambda name: (rank.get(name, len(rank)), name))]


def read_rows(path: Path, task: str) -> list[Row]:
    """The rows of a table that was written before."""
    found = read_json(path)
    rows, other = found.get("rows", []), found.get("task", task)
    if other != task:
        raise InputError(f"--out: {path} is the table of {other}; give another folder")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise FileError(f"{path} is not what sightline wrote; remove it and run the command again")
    return rows
