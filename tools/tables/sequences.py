"""Results on the Long Range Arena: accuracy, speed and memory by mechanism."""

import json
import math
from pathlib import Path
from typing import Any

from sightline.engine.settings import load_recipe
from sightline.tasks.sequences.arena import PUBLISHED
from tables.markdown import command_of, made_on, table

TITLES = {"listops": "ListOps", "image": "Image", "pathfinder": "Pathfinder"}
HEADER = ("mechanism", "updates", "val %", "test %", "published %", "training, examples/s", "inference, examples/s",
          "training, MiB", "inference, MiB")  # fmt: skip


def sequences_section(folder: Path, machine: str) -> str:
    """One table per task with results in the folder; empty if there are none."""
    paths = {task: folder / f"{task}-{machine}.json" for task in TITLES}
    found = {task: path for task, path in paths.items() if path.exists()}
    if not found:
        return ""
    measured = folder / f"speed-{machine}.json"
    speed = json.loads(measured.read_text()) if measured.exists() else None
    parts = ["## Results"]
    if speed:
        parts.append(f"{_about(speed['versions'], measured)} {speed.get('note', '')}".rstrip())
    return "\n\n".join([*parts, *(_task(task, path, speed) for task, path in found.items())])


def study_section(path: Path) -> str:
    """Updates until the first token is found, by number of tokens and mechanism; empty if there are no results.

    Trainings that ended before another mechanism had found it say nothing and are left out.
    """
    if not path.exists():
        return ""
    made = json.loads(path.read_text())
    trained = [row for row in made["rows"] if row["what"] == "first" and row["rate"] == 1e-3]
    least = {row["tokens"]: row["updates"] for row in sorted(trained, key=lambda row: -(row["updates"] or math.inf))}
    found: dict[str, dict[int, str]] = {}
    for row in trained:
        if row["stopped"] >= (least[row["tokens"]] or math.inf):
            name = f"`{row['attention']}`" + ("" if row["sharpness"] == 1 else ", scores times N")
            better = str(row["updates"]) if row["updates"] else f"> {row['stopped']}"
            known = found.setdefault(name, {}).get(row["tokens"], "")
            found[name][row["tokens"]] = better if not known or known.startswith(">") else known
    sizes = sorted({size for cells in found.values() for size in cells})
    lines = [[name, *(cells.get(size, "") for size in sizes)] for name, cells in found.items()]
    where = f"{made_on(made['versions'])}; data: [{path.name}](../results/sequences/{path.name})."
    return "\n\n".join([table(("updates until 90 % are right", *(f"N = {size}" for size in sizes)), lines), where])


def _about(versions: dict[str, Any], path: Path) -> str:
    return (
        f"Speed and memory: {made_on(versions)}, on an idle GPU, plain calls at the recipe's batch size, autocast to "
        "bfloat16; memory is the peak allocated by torch, excluding the model. "
        f"`{command_of(versions)}`; data: [{path.name}](../results/sequences/{path.name})."
    )


def _task(task: str, path: Path, speed: dict[str, Any] | None) -> str:
    made = json.loads(path.read_text())
    rows = made["rows"]
    recipe = load_recipe(f"lra_{task}")
    whole, batch = recipe["schedule"]["epochs"] * recipe["data"]["epoch_steps"], recipe["batch"]["size"]
    sizes, seeds = (", ".join(map(str, sorted({row[key] for row in rows}))) for key in ("batch", "seed"))
    compressed = ", its schedule compressed to fewer here" if any(row["steps"] < whole for row in rows) else ""
    rates = ", ".join(f"{rate:g}" for rate in sorted({row["lr"] for row in rows}))
    machines = "; ".join(dict.fromkeys(made_on(row) for row in rows))
    text = (
        f"{machines}. The recipe has {whole:,} updates of {batch} examples{compressed}; batch {sizes}, learning "
        f"rate {rates} (the recipe's is {recipe['optim']['lr']:g}), seed {seeds}, "
        f"tested on {rows[0]['examples']:,} examples with the best validation weights."
        f"{' ' + made['note'] if 'note' in made else ''} Data: [{path.name}](../results/sequences/{path.name})."
    )
    fast = {row["attention"]: row for row in speed["rows"] if row["task"] == task} if speed else {}
    seeds_of: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in rows:
        seeds_of.setdefault((row["attention"], row["steps"]), []).append(row)
    lines = [_line(group, task, fast.get(name)) for (name, _), group in seeds_of.items()]
    shown = {row["published_as"] for row in rows}
    others = [
        [name, "", "", "", f"{scores[task]:.1f}", "", "", "", ""]
        for name, scores in PUBLISHED.items()
        if name not in shown
    ]
    return "\n\n".join([f"### {TITLES[task]}", text, table(HEADER, [*lines, *others])])


def _line(rows: list[dict[str, Any]], task: str, fast: dict[str, Any] | None) -> list[str]:
    """The mean over the seeds of a mechanism, with the range of the test."""
    row = rows[0]
    known = "" if row["published_as"] is None else f"{PUBLISHED[row['published_as']][task]:.1f}"
    modes = [fast[mode] if fast else {} for mode in ("train", "forward")]
    costs = [_number(mode.get(key)) for key in ("examples_per_second", "peak_mib") for mode in modes]
    val, test = (sum(row[key] for row in rows) / len(rows) for key in ("val", "test"))
    span = f" ({min(row['test'] for row in rows):.2f} to {max(row['test'] for row in rows):.2f})" if rows[1:] else ""
    return [f"`{row['attention']}`", f"{row['steps']:,}", f"{val:.2f}", f"{test:.2f}{span}", known, *costs]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"
