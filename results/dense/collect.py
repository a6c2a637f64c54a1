"""Scores of the runs in a folder, `FOLDER/NAME/eval-SPLIT/eval.json`, in one file: `collect.py FOLDER`."""

import json
import sys
from pathlib import Path
from typing import Any


def row(path: Path) -> dict[str, Any]:
    """A run on a split: what was trained, for how long, on what, and its scores."""
    run, facts = path.parents[1], json.loads(path.read_text())
    done, versions = (json.loads((run / name).read_text()) for name in ("done.json", "versions.json"))
    return {
        "run": run.name, "split": path.parent.name.removeprefix("eval-"), "images": facts["images"], **facts["scores"],
        "steps": done["step"], "seconds": round(done["seconds"], 1),
        **{key: versions.get(key) for key in ("device", "torch", "commit", "command")},
    }  # fmt: skip


def main() -> None:
    folder = Path(sys.argv[1])
    rows = [row(path) for path in sorted(folder.glob("*/eval-*/eval.json"))]
    (folder / "results.json").write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    for found in rows:
        scores = ", ".join(f"{key} {found[key]:.2f}" for key in ("miou", "box_ap", "mask_ap") if key in found)
        print(f"{found['run']}, {found['split']}: {scores} after {found['steps']} updates")
    print(f"wrote {folder / 'results.json'}")


if __name__ == "__main__":
    main()
