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
    written = [folder / "eval.json"]
    _write(written[0], json.dumps(facts, indent=1) + "\n")
    for result in facts.get("results", [facts]):
        ending = "" if result is facts else f"-{format_size(result['img_size'])}"
        rows, confusion = result["per_class"], result.get("confusion")
        classes = facts.get("classes") or [row["class"] for row in rows]
        if rows:
            written.append(folder / f"per_class{ending}.csv")
            _write(written[-1], _csv([list(rows[0]), *(list(row.values()) for row in rows)]))
        if confusion:
            written += [folder / f"confusion{ending}.csv", folder / f"confusion{ending}.png"]
            lines = [[name, *counts] for name, counts in zip(classes, confusion, strict=True)]
            _write(written[-2], _csv([["true class", *classes], *lines]))
            write_figure(written[-1], confusion_figure(classes, confusion))
    return written


def _csv(lines: Iterable[Sequence[object]]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(lines)
    return text.getvalue()


def _write(path: Path, text: str) -> None:
    write_result(path, lambda target: target.write_bytes(text.encode("utf-8", "backslashreplace")))
