"""The files that `sightline eval --out` writes."""

import csv
import json
from pathlib import Path
from typing import Any

from sightline.cli.evaluation import times


def write_results(folder: Path, facts: dict[str, Any]) -> None:
    """eval.json with everything; for every size a table of classes and the confusion matrix as a picture."""
    from sightline.engine.report.figures import confusion_figure
    from sightline.engine.report.record import Record

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "eval.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    for result in facts["results"]:
        size = times(result["img_size"])
        if result["per_class"]:
            with (folder / f"per_class-{size}.csv").open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, list(result["per_class"][0]))
                writer.writeheader()
                writer.writerows(result["per_class"])
        figure = confusion_figure(Record(folder.name, {}, {}, [], facts["classes"], result["confusion"]))
        if figure is not None:
            figure.savefig(folder / f"confusion-{size}.png", dpi=110, bbox_inches="tight")
