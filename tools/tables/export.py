"""Exported files: their difference from the model, their latency on a CPU, and packages on a GPU."""

import json
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from sightline.util.names import format_size
from tables.markdown import command_of, commands_of, made_on, table

KINDS = {"eager": "eager", "compiled": "compiled", "onnxruntime": "onnxruntime", "int8": "onnxruntime, int8"}


def checks_section(path: Path) -> str:
    """The largest difference by case and size; empty if the file is missing."""
    if not path.exists():
        return ""
    made = json.loads(path.read_text())
    rows = made["rows"]
    about = _about(made, path, lambda row: _code(row["case"]))
    sizes = list(dict.fromkeys((c["height"], c["width"]) for c in rows[0]["checks"]))
    batches = " and ".join(map(str, sorted({c["batch"] for c in rows[0]["checks"]})))
    text = (
        f"The largest absolute difference of any output from the model in eager mode, float32, batches of {batches}; "
        f"{made['tolerance']:g} is allowed. {about}"
    )
    lines = [
        [
            _code(row["case"]),
            f".{row['suffix']}",
            *(f"{max(c['difference'] for c in row['checks'] if (c['height'], c['width']) == s):.1e}" for s in sizes),
        ]
        for row in rows
    ]
    return "\n\n".join([text, table(("model", "file", *(format_size(size) for size in sizes)), lines, text=2)])


def accuracy_section(path: Path) -> str:
    """Accuracy of a trained run before and after export; empty if the file is missing."""
    if not path.exists():
        return ""
    made = json.loads(path.read_text())
    text = f"Accuracy in percent on {made['rows'][0]['images']:,} images. {_about(made, path)}"
    lines = [[row["file"], f"{row['top1']:.2f}", f"{row['top5']:.2f}", f"{row['loss']:.4f}"] for row in made["rows"]]
    return "\n\n".join([text, table(("file", "top-1", "top-5", "loss"), lines)])


def latency_section(path: Path) -> str:
    """Milliseconds per image by model and size; empty if the file is missing."""
    if not path.exists():
        return ""
    made = json.loads(path.read_text())
    about = _about(made, path, lambda row: f"`{row['model']}` at {row['size']}")
    clock = " of processor time, as others used the machine" if made["clock"] == "cpu" else ""
    text = (
        f"Milliseconds per image{clock}; one image at a time, files for one size, random weights; the fastest of "
        f"several rounds in which the four took turns. {about}"
    )
    lines = [
        [f"`{row['model']}`", str(row["size"]), *(f"{min(row['ms'][kind]):.1f}" for kind in KINDS)]
        for row in made["rows"]
    ]
    return "\n\n".join([text, table(("model", "size", *KINDS.values()), lines)])


def packages_section(path: Path) -> str:
    """Images per second of packages on a GPU next to torch.compile; empty if the file is missing."""
    if not path.exists():
        return ""
    made = json.loads(path.read_text())
    text = (
        "Images per second of packages and of `torch.compile` of the same graph, plain calls in turns; *difference* is "
        "the largest from the model in float32, relative to its largest output if that is above one; *alone* is that "
        'of a process that cannot import sightline, "-" if it failed. '
        f"{made_on(made['versions'], made['rows'])}. {commands_of(made)}; "
        f"data: [{path.name}](../results/export/{path.name})."
    )
    titles = ("model", "size", "batch", "dynamic", "dtype", "package", "compiled", "ratio", "difference", "alone")
    rows = sorted(made["rows"], key=lambda row: (len(row["dynamic"]), row["model"], row["size"], row["dtype"]))
    return "\n\n".join([text, table(titles, [_package(row) for row in rows])])


def _package(row: dict[str, Any]) -> list[str]:
    ms = {kind: median(row["ms"][kind]) if row["ms"][kind] else None for kind in ("package", "compiled")}
    speeds = [f"{1e3 * row['batch'] / value:,.0f}" if value else "-" for value in ms.values()]
    ratio = f"{ms['compiled'] / ms['package']:.2f}" if ms["package"] and ms["compiled"] else "-"
    found = ["-" if row[key] is None else f"{row[key]:.1e}" for key in ("difference", "alone")]
    return [
        f"`{row['model']}`",
        *(str(row[key]) for key in ("size", "batch", "dynamic", "dtype")),
        *speeds,
        ratio,
        *found,
    ]


def _code(case: str) -> str:
    name, comma, rest = case.partition(",")
    return f"`{name}`{comma}{rest}"


def _about(made: dict[str, Any], path: Path, name: Callable[[dict[str, Any]], str] | None = None) -> str:
    """Provenance; the rows that are of another commit than the last one by `name`."""
    versions = made["versions"]
    machine = made["machine"].replace(" cpu ", " cpu, ").replace(", 1 threads", ", one thread")
    facts = f"{made_on(versions | {'device': machine})}, onnxruntime {made['onnxruntime']}"
    groups: dict[str, list[str]] = {}
    for row in made["rows"]:
        if name is not None:
            groups.setdefault(row.get("commit", versions["commit"]), []).append(name(row))
    older = [f"{', '.join(rows)}: {commit[:7]}" for commit, rows in groups.items() if commit != versions["commit"]]
    notes = [*([f"Of an older commit: {'; '.join(older)}."] if older else []), *filter(None, [made.get("note")])]
    text = "".join(f" {note}" for note in notes)
    return f"{facts}. `{command_of(versions)}`.{text} Data: [{path.name}](../results/export/{path.name})."
