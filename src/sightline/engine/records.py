"""The records of a run, read with their types: a damaged or forged file is one `FileError`."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter

from sightline.engine.settings import DEFAULT_TASK, TASK
from sightline.util.documents import check, read_yaml
from sightline.util.errors import FileError
from sightline.util.files import open_regular

CONFIG, VERSIONS, METRICS, CLASSES = "config.yaml", "versions.json", "metrics.jsonl", "classes.json"
CONFUSION, PER_CLASS, DONE = "confusion.json", "per_class.json", "done.json"
Count = Annotated[int, Field(ge=0, le=2**53)]
Number = Annotated[int, Field(ge=-(2**53), le=2**53)] | float | None
Row = dict[str, Number]  # of an epoch
Scores = dict[str, str | Number]  # of a class


def _counts(value: object) -> object:
    return value.get("counts") if isinstance(value, dict) else value


def _square(counts: list[list[int]]) -> list[list[int]]:
    if any(len(row) != len(counts) for row in counts):
        raise ValueError("not a square matrix")
    return counts


RECIPE = TypeAdapter(dict[str, Any])
TASK_NAME = TypeAdapter(str)
NAMES = TypeAdapter(list[str])
SECTIONS = TypeAdapter(dict[str, dict[str, Any] | None])
ROW: TypeAdapter[Row] = TypeAdapter(Row)
SCORES: TypeAdapter[list[Scores]] = TypeAdapter(list[Scores])
COUNTS: TypeAdapter[list[list[int]]] = TypeAdapter(
    Annotated[list[list[Count]], BeforeValidator(_counts), AfterValidator(_square)]
)


def read_config(folder: Path) -> dict[str, Any]:
    """The task and the sections of config.yaml in a run folder, not yet checked key by key.

    Raises:
        FileError: there is none, or it is damaged.
    """
    path = folder / CONFIG
    if not path.is_file():
        raise FileError(f"{folder}: not the folder of a run, which has a {CONFIG}")
    recipe = check(RECIPE, read_yaml(path) or {}, path)
    if not recipe:
        raise FileError(f"{path}: empty; restore it from a copy")
    task = check(TASK_NAME, recipe.pop(TASK, DEFAULT_TASK), path)
    return {TASK: task, **{name: values or {} for name, values in check(SECTIONS, recipe, path).items()}}


def read_rows(folder: Path) -> list[Row]:
    """The metrics, one row per epoch; lines that are truncated or damaged are skipped."""
    rows = []
    with suppress(OSError), open_regular(folder / METRICS) as file:
        for line in file:
            with suppress(ValueError, RecursionError):
                rows.append(ROW.validate_python(json.loads(line)))
    return [row for row in rows if row.get("epoch") is not None]
