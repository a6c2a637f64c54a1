"""The files of an evaluation: everything as JSON, scores by class as CSV, the confusion matrix as CSV and a picture."""

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sightline.engine.report.figures import confusion_figure, write_figure
from sightline.util.files import write_result
from sightline.util.names import format_size


def write_scores(folder: str | Path, facts: Mapping[str, Any]) -> list[Path]:
    """Write the files of an evaluation.

    Args:
        folder: created if missing.
        facts: what `sightline eval --json` prints. `results` lists scores by image size, each with `img_size`; or
            there is one evaluation. It has `classes`, rows `per_class` and, if there is a matrix, `confusion`.

    Returns:
        The paths: eval.json, and for every evaluation per_class.csv, confusion.csv and confusion.png, with the size
        at the end of the name if there is a list.

    Raises:
        InputError: a file cannot be written.
    """
    folder = Path(folder)
    text = json.dumps(facts, indent=1) + "\n"
    written = [folder / "eval.json"]
    write_result(written[0], lambda path: path.write_text(text, encoding="utf-8"))
    if "results" in facts:
        for result in facts["results"]:
            ending = f"-{format_size(result['img_size'])}"
            written += _write_tables(folder, facts["classes"], result["per_class"], result["confusion"], ending)
        return written
    classes = facts.get("classes") or [row["class"] for row in facts["per_class"]]
    return [*written, *_write_tables(folder, classes, facts["per_class"], facts.get("confusion"))]


def _write_tables(
    folder: Path,
    classes: Sequence[str],
    rows: Sequence[Mapping[str, object]] | None,
    confusion: list[list[int]] | None,
    ending: str = "",
) -> list[Path]:
    """Write the rows by class, and the matrix with one row per true class."""
    written = []
    if rows:
        written.append(folder / f"per_class{ending}.csv")
        _write_csv(written[-1], [list(rows[0]), *(list(row.values()) for row in rows)])
    if confusion:
        written.append(folder / f"confusion{ending}.csv")
        lines = [[name, *counts] for name, counts in zip(classes, confusion, strict=True)]
        _write_csv(written[-1], [["true class", *classes], *lines])
        written.append(folder / f"confusion{ending}.png")
        write_figure(written[-1], confusion_figure(classes, confusion))
    return written


def _write_csv(path: Path, lines: Iterable[Sequence[object]]) -> None:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(lines)
    write_result(path, lambda target: target.write_text(text.getvalue(), encoding="utf-8", newline=""))
