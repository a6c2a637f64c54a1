"""Writes the generated parts of the documentation: `python docs/make_tables.py` (or `make tables`).

The README's tables of models and speed, and the whole of docs/performance.md, which is made of the files in `results/`
and of docs/performance_log.md. `--check` writes nothing and fails when something is out of date.
"""

import argparse
import sys
from pathlib import Path

import timm
import torch

import sightline  # noqa: F401  (registers the models)
from sightline.bench import measure_cost
from sightline.bench.report import performance_page, speed_section
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
    readme, results = ROOT / "README.md", ROOT / "results"
    text = with_block(readme.read_text(), "models", model_table())
    return {
        readme: with_block(text, "speed", speed_section(results)),
        ROOT / "docs" / "performance.md": performance_page(results, ROOT / "docs" / "performance_log.md"),
    }


if __name__ == "__main__":
    sys.exit(main())
