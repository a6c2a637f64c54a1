"""Write the generated parts of the documentation: `python tools/make_tables.py` (or `make tables`).

These are the README's headline and table of speeds; the tables of docs/models.md, docs/mechanisms.md, docs/training.md,
docs/dense.md, docs/export.md, docs/linearize.md and docs/sequences.md; docs/performance.md and
docs/performance_tables.md; the figures in docs/images. `--check` writes nothing and fails if a page is out of date or
a figure is missing.
"""

import argparse
import sys
from pathlib import Path

from tables.ablation import ablation_section
from tables.bench import headline, speed_section, tables_page
from tables.dense import cost_section, runs_section
from tables.export import accuracy_section, checks_section, latency_section, packages_section
from tables.figures import FIGURES, PLAIN_FIGURES, draw_figures
from tables.imagenette import evidence_section, imagenette_section
from tables.linearize import (
    compiled_section,
    finetune_section,
    ladder_section,
    resolution_section,
    search_section,
    students_section,
)
from tables.performance import performance_page
from tables.photos import photos_section
from tables.plain import plain_reports, speed_block
from tables.registry import mechanism_table, model_table
from tables.sequences import sequences_section, study_section

ROOT = Path(__file__).resolve().parent.parent
MACHINE = "nvidia_h200"


def with_block(text: str, label: str, block: str) -> str:
    """`text` with the block between the markers of `label` replaced."""
    start, end = f"<!-- {label} -->", f"<!-- /{label} -->"
    head, _, rest = text.partition(start)
    _, _, tail = rest.partition(end)
    return f"{head}{start}\n{block}\n{end}{tail}"


def pages() -> dict[Path, str]:
    """Every generated page with its text."""
    docs, results = ROOT / "docs", ROOT / "results"
    imagenette = f"imagenette-{MACHINE}.json"
    speed = speed_block(results, "docs/performance.md") or speed_section(results)
    blocks = {
        ROOT / "README.md": {"headline": headline(results), "speed": speed},
        docs / "models.md": {"models": model_table()},
        docs / "mechanisms.md": {
            "mechanisms": mechanism_table(),
            "ablation": ablation_section(results / "training", MACHINE),
            "evidence": evidence_section(results / "mechanisms" / imagenette),
        },
        docs / "training.md": {
            "photos": photos_section(results / "training" / f"photos-{MACHINE}.json"),
            "imagenette": imagenette_section(results / "training" / imagenette),
        },
        docs / "dense.md": {
            "runs": runs_section(results / "dense" / f"runs-{MACHINE}.json"),
            "cost": cost_section(results / "dense" / f"cost-{MACHINE}.json"),
        },
        docs / "export.md": {
            "checks": checks_section(results / "export" / "checks-cpu.json"),
            "accuracy": accuracy_section(results / "export" / "accuracy-cpu.json"),
            "latency": latency_section(results / "export" / "latency-cpu.json"),
            "packages": packages_section(results / "export" / f"packages-{MACHINE}.json"),
        },
        docs / "linearize.md": {
            "students": students_section(results / "linearize" / f"students-{MACHINE}.json"),
            "speed": compiled_section(results / "linearize" / f"speed-{MACHINE}.json"),
            "search": search_section(results / "linearize" / f"search-{MACHINE}.json"),
            "ladder": ladder_section(results / "linearize" / f"ladder-{MACHINE}.json"),
            "resolution": resolution_section(results / "linearize" / f"resolution-{MACHINE}.json"),
            "finetune": finetune_section(results / "linearize" / f"finetune-{MACHINE}.json"),
        },
        docs / "sequences.md": {
            "results": sequences_section(results / "sequences", MACHINE),
            "study": study_section(results / "sequences" / "listops_study-cpu.json"),
        },
    }
    made = {
        docs / "performance.md": performance_page(results),
        docs / "performance_tables.md": tables_page(results),
    }
    for path, sections in blocks.items():
        made[path] = path.read_text()
        for label, block in sections.items():
            made[path] = with_block(made[path], label, block)
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    made = pages()
    stale = [path for path, text in made.items() if not path.exists() or path.read_text() != text]
    images = ROOT / "docs" / "images"
    names = (*FIGURES, *(PLAIN_FIGURES if plain_reports(ROOT / "results") else ()))
    stale += [path for path in (images / f"{name}.png" for name in names) if not path.exists()]
    for path in stale if check else ():
        print(f"{path.relative_to(ROOT)} is out of date; run `make tables`", file=sys.stderr)
    if not check:
        for path, text in made.items():
            path.write_text(text)
        draw_figures(ROOT / "results", images)
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
