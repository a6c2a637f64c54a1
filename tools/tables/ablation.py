"""The ablation of mechanisms, from the files that `tools/search_recipes.py --whole` writes."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from side_by_side import Row, read_rows

from tables.markdown import made_on, table

BACKBONES = {"deit": "plain transformer", "pyramid": "pyramid"}


def ablation_section(folder: Path, machine: str) -> str:
    """Mean and standard deviation over seeds by mechanism, with a column per backbone that was trained."""
    paths = {name: folder / f"ablation_{name}-{machine}.jsonl" for name in BACKBONES}
    found = {name: _by_name(path) for name, path in paths.items() if path.exists()}
    rows = [row for groups in found.values() for group in groups.values() for row in group]
    scores = [{name: [row["top1"] for row in group] for name, group in groups.items()} for groups in found.values()]
    names = sorted({row["name"] for row in rows}, key=lambda name: -_score(scores, name))
    lines = [[name, *(cell for column in scores for cell in _cells(column.get(name, [])))] for name in names]
    titles = [title for name in found for title in (f"{BACKBONES[name]}, top-1", "seeds")]
    commands = {_without_folders(command): command for command in map(_command, rows)}  # the last of those alike
    files = ", ".join(f"[{paths[name].name}](../results/training/{paths[name].name})" for name in found)
    trials = ", ".join(f"[ablation_{name}.yaml](../tools/trials/ablation_{name}.yaml)" for name in found)
    head = (
        "Imagenette at 128 px from scratch, 80 epochs; validation images, last epoch, averaged weights, one view; mean "
        f"and standard deviation over seeds; {made_on(rows[0]['versions'], rows)}. "
        f"{', '.join(f'`{command}`' for command in commands.values())}; trials: {trials}; curves, configurations and "
        f"versions: {files}."
    )
    return f"{head}\n\n{table(('mechanism', *titles), lines)}"


def _by_name(path: Path) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in read_rows(path):
        if "error" not in row:
            groups.setdefault(row["name"], []).append(row)
    return groups


def _command(row: Row) -> str:
    """What made a row, without the limits of time and processes."""
    command: str = row["versions"]["command"]
    return command.partition(" --processes")[0]


def _without_folders(command: str) -> str:
    return " ".join(Path(word).name for word in command.split())


def _score(scores: Sequence[Mapping[str, list[float]]], name: str) -> float:
    """The mean on the first backbone that has this mechanism."""
    return next(statistics.mean(column[name]) for column in scores if name in column)


def _cells(scores: list[float]) -> tuple[str, str]:
    if not scores:
        return "-", "0"
    spread = f" ± {statistics.stdev(scores):.2f}" if len(scores) > 1 else ""
    return f"{statistics.mean(scores):.2f}{spread}", str(len(scores))
