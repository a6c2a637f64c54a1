"""The records of a run, read with their types: a damaged or forged file is one `FileError`."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, TypeAdapter, ValidationError

from sightline.engine.settings import DEFAULT_TASK, TASK, load_recipe
from sightline.util.errors import FileError
from sightline.util.files import reason

CONFIG, VERSIONS, METRICS, CLASSES = "config.yaml", "versions.json", "metrics.jsonl", "classes.json"
CONFUSION, PER_CLASS, DONE = "confusion.json", "per_class.json", "done.json"
T = TypeVar("T")
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


OBJECT = TypeAdapter(dict[str, JsonValue])
NAMES = TypeAdapter(list[str])
SECTIONS = TypeAdapter(dict[str, dict[str, Any] | None])
ROW: TypeAdapter[Row] = TypeAdapter(Row)
SCORES: TypeAdapter[list[Scores]] = TypeAdapter(list[Scores])
COUNTS: TypeAdapter[list[list[int]]] = TypeAdapter(
    Annotated[list[list[Count]], BeforeValidator(_counts), AfterValidator(_square)]
)


def check(adapter: TypeAdapter[T], value: object, path: Path) -> T:
    """A value with the types that a record has.

    Raises:
        FileError: names the file, the key and what is expected there.
    """
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        key = ".".join(str(part)[:40] for part in first["loc"])
        raise FileError(f"{path}: damaged ({key and f'{key}: '}{first['msg'].lower()})") from None


def read_json(path: Path, adapter: TypeAdapter[T]) -> T:
    """Read a JSON file.

    Raises:
        FileError: it is missing, is not JSON, or does not have the types of `adapter`.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise FileError(f"{path}: damaged ({reason(error)})") from error
    return check(adapter, value, path)


def read_config(folder: Path) -> dict[str, Any]:
    """The task and the sections of config.yaml in a run folder, not yet checked key by key.

    Raises:
        FileError: there is none, or it is damaged.
    """
    path = folder / CONFIG
    if not path.is_file():
        raise FileError(f"{folder}: not the folder of a run, which has a {CONFIG}")
    recipe = load_recipe(str(path))
    if not recipe:
        raise FileError(f"{path}: empty; restore it from a copy")
    task = str(recipe.pop(TASK, DEFAULT_TASK))
    return {TASK: task, **{name: values or {} for name, values in check(SECTIONS, recipe, path).items()}}


def read_rows(folder: Path) -> list[Row]:
    """The metrics, one row per epoch; lines that are truncated or damaged are skipped."""
    path, rows = folder / METRICS, []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else ():
        with suppress(ValueError, RecursionError):
            rows.append(ROW.validate_python(json.loads(line)))
    return [row for row in rows if row.get("epoch") is not None]
