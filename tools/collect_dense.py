"""Collect the scores of all runs in a folder into one file: `collect_dense.py FOLDER [--out FILE] [--note TEXT]`.

One row per `FOLDER/NAME/eval-SPLIT/eval.json`, and one per run for the validation at its best epoch. Incomplete runs
(without `done.json`) are left out.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import yaml

from sightline.engine.settings import load_recipe

SCORES = ("miou", "box_ap", "mask_ap")
NOT_SCORES = ("epoch", "step", "train_loss", "lr", "images_per_second")


def rows_of(run: Path) -> list[dict[str, Any]]:
    """Rows of a run, one per split: configuration, duration and scores."""
    done, versions = (json.loads((run / name).read_text()) for name in ("done.json", "versions.json"))
    config = yaml.safe_load((run / "config.yaml").read_text())
    words = versions["command"].split()
    recipe = words[words.index("--config") + 1]
    facts = {
        "recipe": recipe, "head": config["model"]["head"], "backbone": config["model"]["name"],
        "attention": config["model"]["args"].get("attention", "own"), "seed": config["run"]["seed"],
        "epochs": config["schedule"]["epochs"], "recipe_epochs": load_recipe(recipe)["schedule"]["epochs"],
        "best_epoch": done["epoch"], "steps": done["step"], "seconds": round(done["seconds"], 1),
        **{key: versions.get(key) for key in ("device", "torch", "timm", "commit", "command")},
    }  # fmt: skip
    found = [evaluated(path) for path in sorted(run.glob("eval-*/eval.json"))]
    return [{"run": run.name, **row, **facts} for row in (*found, trained(run, done["epoch"]))]


def evaluated(path: Path) -> dict[str, Any]:
    """What `sightline eval` found on a split."""
    facts = json.loads(path.read_text())
    split = path.parent.name.removeprefix("eval-")
    return {"split": split, "from": "sightline eval", "images": facts["images"], **facts["scores"]}


def trained(run: Path, epoch: int) -> dict[str, Any]:
    """The validation during training at the epoch whose weights were kept."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    (line,) = (line for line in lines if line["epoch"] == epoch)
    scores = {key: round(value, 4) for key, value in line.items() if key not in NOT_SCORES}
    return {"split": "val", "from": "training", "images": None, **scores}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, help="by default FOLDER/results.json")
    parser.add_argument("--note", default="", help="what a reader of the scores has to know")
    options = parser.parse_args()
    out = options.out or options.folder / "results.json"
    rows = [row for path in sorted(options.folder.glob("*/done.json")) for row in rows_of(path.parent)]
    out.write_text(json.dumps({"note": options.note, "rows": rows}, indent=1) + "\n")
    for row in rows:
        scores = ", ".join(f"{key} {row[key]:.2f}" for key in SCORES if key in row)
        print(f"{row['run']}, {row['split']} ({row['from']}): {scores} after {row['steps']} updates")
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
