"""Results of segmentation and detection: scores of runs, time and memory by image size."""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tables.markdown import command_of, made_on, table

Rows = list[dict[str, Any]]
SPLITS = ("train", "val", "test")
NONE = "-"


def runs_section(path: Path) -> str:
    """Scores by split, one table for segmentation and one for detection; empty if the file is missing."""
    if not path.exists():
        return ""
    made = json.loads(path.read_text())
    machines = "; ".join(dict.fromkeys(made_on(row) for row in made["rows"]))
    head = (
        f"{machines}; scores in percent, with the weights of the best validation epoch. "
        f"{made['note']} Commands and all numbers: [{path.name}](../results/dense/{path.name})."
    )
    runs: dict[str, Rows] = {}
    for row in made["rows"]:
        runs.setdefault(row["run"], []).append(row)
    segmented = [_run(rows, ("miou",), ("val", "test")) for rows in runs.values() if "miou" in rows[0]]
    detected = [_run(rows, ("box_ap", "mask_ap"), SPLITS) for rows in runs.values() if "box_ap" in rows[0]]
    titles = ("run", "head", "backbone", "seeds", "updates", "epochs, of the recipe's", "best epoch")
    parts = [head]
    if segmented:
        parts.append(_filled((*titles, "val mIoU", "test mIoU"), segmented))
    if detected:
        scores = [f"{split} {kind} AP" for kind in ("box", "mask") for split in SPLITS]
        parts.append(_filled((*titles, *scores), detected))
    if any("\\*" in cell for line in (*segmented, *detected) for cell in line):
        parts.append("\\* evaluated during training.")
    return "\n\n".join(parts)


def _filled(titles: Sequence[str], lines: list[list[str]]) -> str:
    """A table without the columns that have no value at all."""
    kept = [place for place in range(len(titles)) if any(line[place] != NONE for line in lines)]
    return table([titles[place] for place in kept], [[line[place] for place in kept] for line in lines])


def _run(rows: Rows, scores: tuple[str, ...], splits: tuple[str, ...]) -> list[str]:
    row = rows[0]
    twin = "" if row["attention"] == "own" else f", {row['attention']}"
    start = ", pretrained" if row.get("pretrained") else ""
    best = " to ".join(str(epoch) for epoch in _ends([row["best_epoch"] for row in rows]))
    facts = [f"{row['steps']:,}", f"{row['epochs']} of {row['recipe_epochs']}", best]
    cells = [_score(rows, score, split) for score in scores for split in splits]
    seeds = str(len({row["seed"] for row in rows}))
    return [f"`{row['run']}`", row["head"], f"{row['backbone']}{twin}{start}", seeds, *facts, *cells]


def _ends(values: list[int]) -> list[int]:
    """The lowest and the highest of some numbers, once if they are the same."""
    return sorted({min(values), max(values)})


def _score(rows: Rows, score: str, split: str) -> str:
    """What `sightline eval` found, with the deviation over seeds, or with a mark the validation during training."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if row["split"].removesuffix("2017") == split and score in row:
            found.setdefault(row["from"], []).append(row[score])
    if values := found.get("sightline eval"):
        spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
        return f"{statistics.mean(values):.2f}{spread}"
    return f"{found['training'][0]:.2f}\\*" if "training" in found else NONE


def cost_section(path: Path) -> str:
    """Time and peak memory by image size next to softmax twins; empty if the file is missing."""
    if not path.exists():
        return ""
    made = json.loads(path.read_text())
    versions, rows = made["versions"], made["rows"]
    head = (
        f"{made_on(versions)}, autocast to bfloat16, random weights. *ms* is the time per call, *MiB* the peak "
        "memory allocated by torch, excluding the model. Forward runs one image; a training step is forward and "
        "backward on two. "
        f"`{command_of(versions)}`; data: [{path.name}](../results/dense/{path.name}). {made.get('note', '')}"
    ).rstrip()
    parts = ["### Time and memory by image size", head]
    if upernet := [row for row in rows if row["head"] == "upernet"]:
        parts += ["UPerNet, 150 classes:", _by_size(upernet)]
    if detector := [row for row in rows if row["head"] == "mask_rcnn"]:
        size = f"{detector[0]['height']} x {detector[0]['width']}"
        lines = [[_name(row), row["attention"], *_cells(row)] for row in detector]
        parts += [f"Mask R-CNN, 80 classes, forward at {size} with all boxes discarded, without the mask head:",
                  table(("backbone", "attention", "ms", "MiB"), lines)]  # fmt: skip
    return "\n\n".join(parts)


def _by_size(rows: Rows) -> str:
    """One line per backbone, attention and mode; the last column compares memory per pixel at the two ends."""
    sizes = list(dict.fromkeys((row["height"], row["width"]) for row in rows))
    squares = sorted(height for height, width in sizes if height == width)
    lines: dict[tuple[str, str, str], dict[tuple[int, int], dict[str, Any]]] = {}
    for row in rows:
        line = lines.setdefault((_name(row), row["attention"], row["mode"]), {})
        line[row["height"], row["width"]] = row
    labels = [str(h) if h == w else f"{h} x {w}" for h, w in sizes]
    titles = ["backbone", "attention", "mode", *(f"{label}, {unit}" for label in labels for unit in ("ms", "MiB"))]
    grows = len(squares) > 1
    if grows:
        titles.append(f"MiB per pixel, {squares[-1]} over {squares[0]}")
    body = []
    for key, line in lines.items():
        cells = [cell for size in sizes for cell in _cells(line.get(size))]
        body.append([*key, *cells, *([_growth(line, squares[0], squares[-1])] if grows else [])])
    return table(titles, body)


def _name(row: dict[str, Any]) -> str:
    return f"`{row['backbone']}`"


def _cells(row: dict[str, Any] | None) -> list[str]:
    """Milliseconds and MiB."""
    if row is None:
        return [NONE, NONE]
    if "error" in row:
        return [row["error"], NONE]
    ms, memory = row["ms"], row["peak_mib"]
    return [NONE if ms is None else f"{ms:.1f}", NONE if memory is None else f"{memory:,.0f}"]


def _growth(line: dict[tuple[int, int], dict[str, Any]], small: int, large: int) -> str:
    """Memory per pixel at the large size relative to the small one: 1.00 if it grows linearly."""
    first, last = (line.get((side, side), {}).get("peak_mib") for side in (small, large))
    return f"{last / first * (small / large) ** 2:.2f}" if first and last else NONE
