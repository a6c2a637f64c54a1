"""Results on Imagenette: training, and a comparison of mechanisms."""

import json
from pathlib import Path
from typing import Any


def imagenette_section(path: Path) -> str:
    """Accuracy on Imagenette next to the softmax twin, and the speed of preloaded data."""
    made = json.loads(path.read_text())
    board, versions = made["leaderboard"], made["versions"]
    twins = {(row["model"], row["epochs"]): row["top1"] for row in made["rows"] if row["attention"] == "softmax"}
    rows = ["| model | epochs | InLine top-1 | softmax twin | leaderboard |", "|---|---|---|---|---|"]
    for row in made["rows"]:
        if row["attention"] == "inline":
            twin = twins.get((row["model"], row["epochs"]))
            other, mark = "-" if twin is None else f"{twin:.2f}", board[str(row["epochs"])]
            rows.append(f"| {row['model']} | {row['epochs']} | {row['top1']:.2f} | {other} | {mark} |")
    speed = ["| recipe | preloaded images/s | synthetic images/s |", "|---|---|---|"]
    for row in made["preload"]["rows"]:
        speed.append(f"| {row['recipe']} | {_median(row['preload'])} | {_median(row['synthetic'])} |")
    software = f"torch {versions['torch']}, timm {versions['timm']}, commit {made['commit']}"
    head = f"{made['what']}; {made['machine']}, {software}."
    where = f"Commands, curves and versions: [{path.name}](../results/training/{path.name})."
    return "\n".join([f"{head} {made['note']} {where}", "", *rows, "", f"{made['preload']['what']}.", "", *speed])


def _median(values: list[int]) -> str:
    return f"{sorted(values)[len(values) // 2]:,}"


def evidence_section(path: Path) -> str:
    """Mechanisms compared on Imagenette: accuracy, speed, confusions and locality."""
    made = json.loads(path.read_text())
    versions, speed = made["versions"], {row["attention"]: row for row in made.get("speed", {}).get("rows", ())}
    software = f"torch {versions['torch']}, timm {versions['timm']}, commit {made['commit']}"
    head = (
        f"{made['what']}; {made['seeds']} seeds; accuracy on the validation split, averaged weights, last epoch; "
        f"{made['machine']}, {software}. {made['note']} "
        f"Commands and all numbers: [{path.name}](../results/mechanisms/{path.name})."
    )
    compared = [row for row in made["rows"] if "confusions" in row]
    titles = ("mechanism", "top-1, mean", "lowest to highest", "confusions per image", "local mass, first / last third",
              "training, images/s", "inference, images/s", "training, GiB")  # fmt: skip
    rows = ["| " + " | ".join(titles) + " |", "|---" * len(titles) + "|"]
    for row in compared:
        masses = [layer["mass"] / layer["even"] for layer in row["locality"]]
        ends = " / ".join(f"{sum(part) / len(part):.2f}" for part in (masses[:4], masses[-4:]))
        fast = speed.get(row["attention"])
        speeds = [f"{fast['train']:,}", f"{fast['forward']:,}", f"{fast['gib']:.1f}"] if fast else ["-"] * 3
        confused = f"{row['confusions']['confused']['by_image']:,.0f}"
        rows.append("| " + " | ".join([f"`{row['attention']}`", *_spread(row), confused, ends, *speeds]) + " |")
    by_name = {row["attention"]: row for row in made["rows"]}
    kernels = ["| phi | linear | InLine |", "|---|---|---|"]
    for phi in ("relu", "leaky_relu", "identity", "exp"):
        pair = [by_name.get(f"{kind}(phi={phi})") or by_name[kind] for kind in ("linear", "inline")]
        kernels.append(f"| {phi} | {pair[0]['mean']:.2f} | {pair[1]['mean']:.2f} |")
    told = [made["speed"]["what"] + ".", ""] if speed else []
    return "\n".join([head, "", *rows, "", *told, "Kernel functions, mean top-1:", "", *kernels])


def _spread(row: dict[str, Any]) -> list[str]:
    return [f"{row['mean']:.2f}", f"{min(row['top1']):.2f} to {max(row['top1']):.2f}"]
