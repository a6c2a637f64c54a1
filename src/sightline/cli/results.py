"""Files that commands write: whether a folder can take them, whole ones, and those of `sightline eval --out`."""

import contextlib
import csv
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sightline.cli.evaluation import times
from sightline.cli.options import UsageError


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
    temporary = path.with_name(f".{os.getpid()}.tmp{path.suffix}")
    try:
        write(temporary)
        temporary.replace(path)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise UsageError(
            f"{path}: could not be written ({why}); make room, or give another place with {name}"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def write_facts(folder: Path, facts: dict[str, Any]) -> Path:
    """eval.json with everything."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(facts, indent=1) + "\n"
    write_whole(folder / "eval.json", lambda path: path.write_text(text, encoding="utf-8"))
    return folder / "eval.json"


def write_results(folder: Path, facts: dict[str, Any]) -> None:
    """eval.json with everything; for every size a table of classes and the confusion matrix as a picture."""
    from sightline.engine.report.figures import confusion_figure
    from sightline.engine.report.record import Record

    write_facts(folder, facts)
    for result in facts["results"]:
        size = times(result["img_size"])
        if result["per_class"]:
            with (folder / f"per_class-{size}.csv").open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, list(result["per_class"][0]))
                writer.writeheader()
                writer.writerows(result["per_class"])
        figure = confusion_figure(Record(folder.name, {}, {}, [], facts["classes"], result["confusion"]))
        if figure is not None:
            figure.savefig(folder / f"confusion-{size}.png", dpi=110, bbox_inches="tight")
