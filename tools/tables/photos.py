"""Results of the recipes for photographs, and of trials, as `tools/search_recipes.py` writes them."""

import json
from pathlib import Path

from tables.markdown import commands_of, made_on, table

LEADERBOARD = {20: 91.57, 80: 93.55}  # of Imagenette at 128 px, by epochs
HEADER = ("recipe", "epochs", "top-1, mean", "lowest to highest", "seeds", "leaderboard")


def photos_section(path: Path) -> str:
    """Accuracy by recipe, averaged over seeds; empty if there are no results."""
    if not path.exists():
        return ""
    made = json.loads(path.read_text())
    groups: dict[str, list[dict]] = {}
    for row in made["rows"]:
        groups.setdefault(row["job"]["recipe"], []).append(row)
    lines = []
    for recipe, rows in groups.items():
        scores, epochs = [row["top1"] for row in rows], rows[0]["curve"][-1][0]
        mean, span = f"{sum(scores) / len(scores):.2f}", f"{min(scores):.2f} to {max(scores):.2f}"
        lines.append([f"`{recipe}`", str(epochs), mean, span, str(len(scores)), f"{LEADERBOARD.get(epochs, '-')}"])
    head = (
        "Imagenette at 128 px from scratch; validation images, last epoch, averaged weights, one view; "
        f"{made_on(made['versions'], made['rows'])}. {commands_of(made)}; curves and versions: "
        f"[{path.name}](../results/training/{path.name})."
    )
    return "\n\n".join(["## Results of the recipe `photos`", head, table(HEADER, lines)])
