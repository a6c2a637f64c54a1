"""What `sightline analyze` leaves behind: pictures as PNG and SVG, numbers as JSON, tables on the screen."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sightline
from sightline.cli.analyze_models import Loaded
from sightline.cli.output import Column, clean, show

if TYPE_CHECKING:
    import torch

    from sightline.analysis.studies import Study

DPI = 110
WORDS = ("model", "layer", "mechanism", "verdict", "method", "mode", "from")  # columns that are not numbers
NARROW = 40  # rows of a table on the screen; the rest is in the JSON file


def about(what: str, device: "torch.device", models: Sequence[Loaded], images: Sequence[str] | None) -> dict[str, Any]:
    """How the numbers came to be."""
    import torch

    return {
        "instrument": what, "sightline": sightline.__version__, "torch": torch.__version__, "device": str(device),
        "models": [item.facts() for item in models], "images": None if images is None else list(images),
    }  # fmt: skip


def finish(out: str, head: dict[str, Any], studies: "Sequence[Study]", models: Sequence[Loaded], as_json: bool) -> None:
    """Write everything, print tables or JSON, and say where it is."""
    folder = Path(out)
    written = write(folder, head, studies)
    warnings = [item.warning for item in models if item.warning]
    if as_json:
        print(json.dumps(clean({**head, **{study.name: study.facts for study in studies}}), indent=2))
    else:
        for warning in warnings:
            print(warning)
        for study in studies:
            _print(study)
    for warning in warnings if as_json else ():
        print(f"sightline: {warning}", file=sys.stderr)
    print(f"wrote {', '.join(map(str, written))}", file=sys.stderr if as_json else sys.stdout)


def write(folder: Path, head: dict[str, Any], studies: "Sequence[Study]") -> list[Path]:
    """The files of some studies, in a folder; gives their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for study in studies:
        for name, figure in study.figures.items():
            for kind in ("png", "svg"):
                written.append(folder / f"{name}.{kind}")
                figure.savefig(written[-1], dpi=DPI, bbox_inches="tight")
        for name, data in study.animations.items():
            written.append(folder / f"{name}.gif")
            written[-1].write_bytes(data)
        written.append(folder / f"{study.name}.json")
        facts = {**head, "title": study.title, "notes": study.notes, "result": study.facts}
        written[-1].write_text(json.dumps(clean(facts), indent=1) + "\n", encoding="utf-8")
    return written


def _print(study: "Study") -> None:
    print(f"\n{study.title}")
    if study.rows:
        show([Column(title, right=title not in WORDS) for title in study.columns], study.rows[:NARROW])
    if len(study.rows) > NARROW:
        print(f"and {len(study.rows) - NARROW} more rows in {study.name}.json")
    for note in study.notes:
        print(note)
