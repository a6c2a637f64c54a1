"""Writes the generated parts of the documentation: `python docs/make_tables.py` (or `make tables`).

The README's tables of models and speed, the table of docs/mechanisms.md, which is that of `sightline list --attention`,
its evidence, the figures of docs/training.md, and the whole of docs/performance.md, which is made of the files in
`results/` and of docs/performance_log.md. `--check` writes nothing and fails when something is out of date.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import timm
import torch

import sightline  # noqa: F401  (registers the models)
from sightline.bench import measure_cost
from sightline.bench.report import performance_page, speed_section
from sightline.layers import MECHANISMS, Spec
from sightline.models import VARIANTS

ROOT = Path(__file__).resolve().parent.parent


def model_table() -> str:
    """A row a model: what was published beside what is measured."""
    rows = ["| model | size | parameters | FLOPs, measured | top-1, published |", "|---|---|---|---|---|"]
    for name, variant in VARIANTS.items():
        with torch.device("meta"):
            model = timm.create_model(name)
        cost = measure_cost(model, (3, variant.size, variant.size))
        top1 = "-" if variant.top1 is None else f"{variant.top1:.1f}"
        rows.append(f"| {name} | {variant.size} | {cost.params / 1e6:.2f} M | {cost.macs / 1e9:.1f} G | {top1} |")
    return "\n".join(rows)


def imagenette_section(path: Path) -> str:
    """Accuracies on Imagenette beside the softmax twin, and the speed of preloaded data."""
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
    """Mechanisms beside each other on Imagenette: accuracy, speed, confusions and locality."""
    made = json.loads(path.read_text())
    versions, speed = made["versions"], {row["attention"]: row for row in made.get("speed", {}).get("rows", ())}
    software = f"torch {versions['torch']}, timm {versions['timm']}, commit {made['commit']}"
    head = (
        f"{made['what']}; {made['seeds']} seeds; accuracy on the validation split, averaged weights, last epoch; "
        f"{made['machine']}, {software}. {made['note']} "
        f"Commands and all numbers: [{path.name}](../results/mechanisms/{path.name})."
    )
    compared = [row for row in made["rows"] if "confusions" in row]
    titles = ("mechanism", "top-1, mean", "least to most", "confusions by image", "local mass, first / last third",
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


def mechanism_table() -> str:
    """A row a mechanism, as the registry has it."""
    rows = ["| name and options | weight of key j for query i | cost | extra parameters | paper | when to use |",
            "|---|---|---|---:|---|---|"]  # fmt: skip
    for name, found in MECHANISMS.items():
        cells = (
            f"`{Spec(name, tuple(found.options.items()))}`",
            f"`{found.weights}`",
            f"`{found.cost}`",
            f"{found.extra_parameters():,}",
            found.paper,
            found.use,
        )
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)


def with_block(text: str, label: str, block: str) -> str:
    """`text` with what stands between the markers of `label` replaced."""
    start, end = f"<!-- {label} -->", f"<!-- /{label} -->"
    head, _, rest = text.partition(start)
    _, _, tail = rest.partition(end)
    return f"{head}{start}\n{block}\n{end}{tail}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale = [path for path, text in pages().items() if not path.exists() or path.read_text() != text]
    for path in stale if check else ():
        print(f"{path.relative_to(ROOT)} is out of date; run `make tables`", file=sys.stderr)
    if not check:
        for path, text in pages().items():
            path.write_text(text)
    return 1 if check and stale else 0


def pages() -> dict[Path, str]:
    """Every generated page as it should be."""
    readme, results, training = ROOT / "README.md", ROOT / "results", ROOT / "docs" / "training.md"
    imagenette = imagenette_section(results / "training" / "imagenette-nvidia_h200.json")
    text = with_block(readme.read_text(), "models", model_table())
    mechanisms = ROOT / "docs" / "mechanisms.md"
    return {
        mechanisms: with_block(
            with_block(mechanisms.read_text(), "mechanisms", mechanism_table()),
            "evidence",
            evidence_section(results / "mechanisms" / "imagenette-nvidia_h200.json"),
        ),
        readme: with_block(text, "speed", speed_section(results)),
        training: with_block(training.read_text(), "imagenette", imagenette),
        ROOT / "docs" / "performance.md": performance_page(results, ROOT / "docs" / "performance_log.md"),
    }


if __name__ == "__main__":
    sys.exit(main())
