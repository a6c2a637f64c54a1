"""Results of linear students: settings, the ladder of mechanisms, resolutions, and fine-tuning."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tables.markdown import commands_of, made_on, table

Row = dict[str, Any]
NONE = "-"
RATE = "images_per_second_"


def search_section(path: Path) -> str:
    """How far students are from their teacher after short runs, by setting; empty if the file is missing."""
    return _section(path, ("setting", "what it changes", "divergence", "agreement, %", "top-1, %"), _trial)


def students_section(path: Path) -> str:
    """Students by the command line: softmax blocks, epochs, time and accuracy; empty if the file is missing."""
    titles = ("attention", "softmax blocks", "epochs of both stages", "seconds", "agreement, %", "top-1, %")
    return _section(path, titles, _student)


def compiled_section(path: Path) -> str:
    """Compiled teacher and student by size; empty if the file is missing."""
    if not path.exists():
        return ""
    made = json.loads(path.read_text())
    times = {(row["size"], row["model"]): row for row in made["rows"]}
    lines = []
    for size in sorted({size for size, _ in times}):
        teacher, student = times[size, "teacher"], times[size, "student"]
        ratio = _number(teacher["ms"] / student["ms"] if teacher["ms"] and student["ms"] else None)
        rates = (_number(row["images_per_second"], ",.0f") for row in (teacher, student))
        lines.append([str(size), str(student["batch"]), *rates, ratio])
    head = ("px", "batch", "teacher, images/s", "student, images/s", "ratio")
    return f"{_head(path, made)}\n\n{table(list(head), lines)}"


def ladder_section(path: Path) -> str:
    """Accuracy, errors and speed by mechanism and number of softmax blocks; empty if the file is missing."""
    titles = ("attention", "softmax blocks", "top-1, %", "agreement, %", "error of stage 1")
    return _section(path, titles, _step, order=_by_mechanism)


def resolution_section(path: Path) -> str:
    """Accuracy and speed by size; empty if the file is missing."""
    titles = ("model", "px", "trained there", "top-1, %", "images/s")
    return _section(path, titles, _size, rates=False, order=_by_size)


def finetune_section(path: Path) -> str:
    """Scores after fine-tuning by what it started from; empty if the file is missing."""
    return _section(path, ("task", "from", "recipe", "epochs", "score, %"), _tuned)


def _section(
    path: Path, titles: tuple[str, ...], cells: Callable[[Row], list[str]], rates: bool = True,
    order: Callable[[list[Row]], list[Row]] = list,
) -> str:  # fmt: skip
    if not path.exists():
        return ""
    made = json.loads(path.read_text())
    rows = order([row for row in made["rows"] if "error" not in row])
    found = {int(key.removeprefix(RATE)) for row in rows for key in row if key.startswith(RATE)}
    sizes = sorted(found) if rates else []
    lines = [[*cells(row), *(_number(row.get(f"{RATE}{size}"), ",.0f") for size in sizes)] for row in rows]
    return f"{_head(path, made)}\n\n{table([*titles, *(f'images/s at {size}' for size in sizes)], lines)}"


def _by_size(rows: list[Row]) -> list[Row]:
    """Teacher and student of a size next to each other, untrained and trained there."""
    return sorted(rows, key=lambda row: (row["size"], row["trained"], row["model"] != "teacher"))


def _by_mechanism(rows: list[Row]) -> list[Row]:
    """The ladder in order, which a file that was continued is not in."""
    seen = list(dict.fromkeys(row["attention"] for row in rows))
    return sorted(rows, key=lambda row: (seen.index(row["attention"]), row["softmax"]))


def _head(path: Path, made: Row) -> str:
    where = f"[{path.name}](../results/linearize/{path.name})"
    return f"{made_on(made['versions'], made['rows'])}. {commands_of(made)} Data: {where}."


def _student(row: Row) -> list[str]:
    kept = ", ".join(map(str, row["blocks"])) if row["softmax"] else NONE
    epochs = f"{row['stage1_epochs']} + {row['epochs']}"
    return [
        f"`{row['attention']}`", kept, epochs, _number(row["seconds"], ".0f"), _number(row["agreement"]), _top1(row)
    ]  # fmt: skip


def _trial(row: Row) -> list[str]:
    changes = ", ".join(f"`{key}={value}`" for key, value in row["changes"].items()) or NONE
    top1 = _top1(row) if "top1" in row else NONE
    return [row["trial"], changes, _number(row["divergence"], ".4f"), _number(row["agreement"]), top1]


def _step(row: Row) -> list[str]:
    agreement, errors = _number(row.get("agreement")), row.get("stage1_errors")
    error = _number(sum(errors) / len(errors) if errors else None, ".3f")
    return [f"`{row['attention']}`", str(row["softmax"]), _top1(row), agreement, error]


def _size(row: Row) -> list[str]:
    rate = _number(row.get(f"{RATE}{row['size']}"), ",.0f")
    return [row["model"], str(row["size"]), "yes" if row["trained"] else "no", _top1(row), rate]


def _tuned(row: Row) -> list[str]:
    score = _top1(row) if "top1" in row else f"{_number(row.get('miou'))} mIoU"
    return [row["task"], row["start"], f"`{row['recipe']}`", str(row["epochs"]), score]


def _top1(row: Row) -> str:
    return f"{row['top1']:.2f} ± {row['standard_error']:.2f} of {row['images']:,}"


def _number(value: float | None, form: str = ".2f") -> str:
    return NONE if value is None else format(value, form)
