"""Files that commands write: whether a folder can take them, whole ones, and those of `sightline eval --out`."""

import csv
import io
import json
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from sightline.cli.evaluation import times
from sightline.cli.options import UsageError
from sightline.util.files import reason, write_atomic


def check_writable(folder: str | Path, name: str) -> None:
    """Make a folder, and refuse one that cannot be written, before any work is done for it.

    Args:
        name: of the option that gives it.
    """
    if not str(folder).strip():
        raise UsageError(f"{name}: the path is empty; give a folder")
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise UsageError(f"{name}: nothing can be written to {folder} ({why}); give another folder") from error


def write_whole(path: Path, write: Callable[[Path], Any], name: str = "--out") -> None:
    """Write a file under a temporary name and rename it: there is a whole file, or what was there before.

    Args:
        write: writes to the path that it is given, which has the same ending.
        name: of the option that gives the folder.

    Raises:
        UsageError: there is no room, or no permission.
    """
    try:
        write_atomic(path, write)
    except OSError as error:
        raise UsageError(
            f"{path}: could not be written ({reason(error).lower()}); make room, or give another place with {name}"
        ) from error


def write_facts(folder: Path, facts: dict[str, Any]) -> Path:
    """eval.json with everything."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(facts, indent=1) + "\n"
    write_whole(folder / "eval.json", lambda path: path.write_text(text, encoding="utf-8"))
    return folder / "eval.json"


def write_results(folder: Path, facts: dict[str, Any]) -> list[Path]:
    """eval.json with everything, and for every size the tables and the picture of `write_tables`; gives their paths."""
    written = [write_facts(folder, facts)]
    for result in facts["results"]:
        ending = f"-{times(result['img_size'])}"
        written += write_tables(folder, facts["classes"], result["per_class"], result["confusion"], ending)
    return written


def write_tables(
    folder: Path,
    classes: Sequence[str],
    rows: Sequence[dict[str, Any]] | None,
    confusion: list[list[int]] | None,
    ending: str = "",
) -> list[Path]:
    """Scores by class as CSV; the confusion matrix as CSV, a row for every true class, and as a picture.

    Args:
        rows: of the classes; None or empty for none.
        confusion: counts; None where there is no such matrix.
        ending: of the names of the files.
    """
    from sightline.engine.report.figures import confusion_figure
    from sightline.engine.report.record import Record

    written = []
    if rows:
        written.append(folder / f"per_class{ending}.csv")
        _write_csv(written[-1], [list(rows[0]), *(list(row.values()) for row in rows)])
    if confusion:
        written.append(folder / f"confusion{ending}.csv")
        lines = [[name, *counts] for name, counts in zip(classes, confusion, strict=True)]
        _write_csv(written[-1], [["true class", *classes], *lines])
        figure = confusion_figure(Record(folder.name, {}, {}, [], list(classes), confusion))
        assert figure is not None
        written.append(folder / f"confusion{ending}.png")
        write_whole(written[-1], lambda path: figure.savefig(path, dpi=110, bbox_inches="tight"))
    return written


def _write_csv(path: Path, lines: Iterable[Sequence[Any]]) -> None:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(lines)
    write_whole(path, lambda place: place.write_text(text.getvalue(), encoding="utf-8", newline=""))
